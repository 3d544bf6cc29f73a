package binlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
)

// The flavours, as they stand in positions and as the library spells them.
const (
	flavorMySQL   = "mysql"
	flavorMariaDB = "mariadb"
)

const positionVersion = 1

// position is a saved position. With a GTID set, that set alone says where to go
// on, on any server of the same history; file and offset are for people, and for
// noticing a reset of the same server. Without one, file and offset say it, and
// only on the server that they came from.
type position struct {
	flavor   string
	gtids    gtidSet // nil: file mode
	file     string
	offset   uint64
	server   string // server_uuid of MySQL, server_id of MariaDB; empty: unknown
	fileHead        // of file
	layouts  string // checksum of the outbox tables' columns there; empty: unknown
}

// positionText is the JSON form. The names are part of what is saved: adding is
// fine, renaming is not.
type positionText struct {
	Version int     `json:"v"`
	Flavor  string  `json:"flavor"`
	GTID    *string `json:"gtid,omitempty"`
	File    string  `json:"file,omitempty"`
	Offset  uint64  `json:"pos,omitempty"`
	Server  string  `json:"server,omitempty"`
	FDE     uint32  `json:"fde,omitempty"`
	First   uint32  `json:"first,omitempty"`
	Layouts string  `json:"layouts,omitempty"`
}

// String gives the text to save.
func (p *position) String() string {
	t := positionText{positionVersion, p.flavor, nil, p.file, p.offset, p.server, p.fde, p.first, p.layouts}
	if p.gtids != nil {
		s := p.gtids.String()
		t.GTID = &s
	}
	b, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("binlog: a position cannot be printed: %v", err)) // strings and numbers only
	}
	return string(b)
}

// parsePosition reads the text of String. It refuses what this version does not
// understand instead of guessing.
func parsePosition(text string) (*position, error) {
	var t positionText
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&t); err != nil {
		return nil, fmt.Errorf("saved position %.100q is not readable: %w", text, err)
	}
	if d.More() {
		return nil, fmt.Errorf("saved position %.100q is followed by something else", text)
	}
	if t.Version != positionVersion {
		return nil, fmt.Errorf("saved position has version %d, this program knows %d", t.Version, positionVersion)
	}
	p := &position{flavor: t.Flavor, file: t.File, offset: t.Offset, server: t.Server, fileHead: fileHead{t.FDE, t.First}, layouts: t.Layouts}
	var err error
	if t.GTID != nil {
		if p.gtids, err = parseSet(t.Flavor, *t.GTID); err != nil {
			return nil, fmt.Errorf("saved position: %w", err)
		}
	}
	return p, p.check()
}

func parseSet(flavor, text string) (gtidSet, error) {
	if flavor == flavorMariaDB {
		return parseMariaDBSet(text)
	}
	return parseMySQLSet(text)
}

func (p *position) check() error {
	if p.flavor != flavorMySQL && p.flavor != flavorMariaDB {
		return fmt.Errorf("saved position has the unknown flavour %.20q", p.flavor)
	}
	if p.gtids != nil {
		return nil
	}
	if p.file == "" {
		return errors.New("saved position has neither a GTID set nor a file")
	}
	// The dump command carries 4 bytes; cutting a larger value down would start in
	// the wrong place without a word.
	if p.offset > math.MaxUint32 {
		return fmt.Errorf("saved position %s:%d is beyond 4 GiB, where no reader can start", p.file, p.offset)
	}
	return nil
}
