package config

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const fileSuffix = "_FILE"

// setting is what the tags of one field say.
type setting struct {
	name   string // without the prefix
	index  int    // of the field in Config
	typ    reflect.Type
	group  string
	desc   string
	shown  string   // how the default reads
	oneOf  []string // what is accepted, for choices
	min    string
	max    string
	secret bool
}

// settings are all variables in the order of the struct.
var (
	settings = readSettings()
	byName   = index(func(s setting) string { return s.name })
	byField  = index(func(s setting) string { return reflect.TypeFor[Config]().Field(s.index).Name })
)

func readSettings() []setting {
	t := reflect.TypeFor[Config]()
	var all []setting
	group := ""
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		group = cmp.Or(f.Tag.Get("group"), group)
		s := setting{
			name: name, index: i, typ: f.Type, group: group, desc: f.Tag.Get("desc"),
			shown: cmp.Or(f.Tag.Get("shown"), f.Tag.Get("envDefault"), "none"),
			min:   f.Tag.Get("min"), max: f.Tag.Get("max"),
			secret: isSecret(f.Type),
		}
		if choices := f.Tag.Get("oneof"); choices != "" {
			s.oneOf = strings.Split(choices, ",")
		}
		all = append(all, s)
	}
	return all
}

func isSecret(t reflect.Type) bool {
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[DSNs]() || t == reflect.TypeFor[PrivateKey]()
}

func index(key func(setting) string) map[string]setting {
	m := map[string]setting{}
	for _, s := range settings {
		m[key(s)] = s
	}
	return m
}

// mistake is the one form of a message about one value.
func (s setting) mistake(value, wrong string) error {
	if s.secret {
		return fmt.Errorf("%s%s: %s", Prefix, s.name, wrong)
	}
	return fmt.Errorf("%s%s=%q: %s", Prefix, s.name, value, wrong)
}

// wanted says what is accepted, in place of the parser's own words where the
// type is not ours.
func (s setting) wanted(parser error) string {
	if _, ours := reflect.New(s.typ).Interface().(encoding.TextUnmarshaler); ours {
		return parser.Error()
	}
	switch s.typ {
	case reflect.TypeFor[time.Duration]():
		return "wanted a duration with its unit, such as 500ms, 30s or 5m"
	case reflect.TypeFor[bool]():
		return "wanted true or false"
	}
	return "wanted a whole number " + s.limits()
}

func (s setting) limits() string {
	switch {
	case s.max != "":
		return "from " + s.min + " to " + s.max
	default:
		return "of at least " + s.min
	}
}

// outside returns what is wrong with a value that parsed, empty if nothing is.
func (s setting) outside(c *Config) string {
	v := reflect.ValueOf(c).Elem().Field(s.index)
	if len(s.oneOf) > 0 {
		if slices.Contains(s.oneOf, v.String()) {
			return ""
		}
		return "wanted one of " + strings.Join(s.oneOf, ", ")
	}
	if s.min != "" && number(v) < s.limit(s.min) || s.max != "" && number(v) > s.limit(s.max) {
		if s.max == "" {
			return "wanted at least " + s.min
		}
		return "wanted a whole number " + s.limits()
	}
	return ""
}

func number(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint()) //nolint:gosec // the only unsigned fields have 32 bits
	}
	return v.Int()
}

// limit reads a min or max tag in the type of the field.
func (s setting) limit(tag string) int64 {
	var n int64
	var err error
	switch s.typ {
	case reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(tag)
		n = int64(d)
	case reflect.TypeFor[Bytes]():
		var b Bytes
		b, err = ParseBytes(tag)
		n = int64(b)
	default:
		n, err = strconv.ParseInt(tag, 10, 64)
	}
	if err != nil {
		panic(fmt.Sprintf("config: limit %q of %s: %v", tag, s.name, err))
	}
	return n
}

// kubernetesService matches what Kubernetes puts into every pod of a namespace
// that has a Service called rowferry or rowferry-something.
var kubernetesService = regexp.MustCompile(
	`^(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// known reports whether a name without prefix is a variable of ours, the file
// form of a secret, or Kubernetes' business.
func known(name string) bool {
	if _, ok := byName[name]; ok {
		return true
	}
	if base, ok := strings.CutSuffix(name, fileSuffix); ok && byName[base].secret {
		return true
	}
	return kubernetesService.MatchString(name)
}

// unknown reports a name that does not exist, with the nearest that does.
func unknown(name string) error {
	if base, ok := strings.CutSuffix(name, fileSuffix); ok {
		if _, exists := byName[base]; exists {
			return fmt.Errorf("%s%s does not exist: only secrets are read from files; set %s%s", Prefix, name, Prefix, base)
		}
	}
	return fmt.Errorf("%s%s does not exist; the nearest name is %s%s", Prefix, name, Prefix, nearest(name))
}

func nearest(name string) string {
	return slices.MinFunc(settings, func(a, b setting) int {
		return cmp.Compare(distance(name, a.name), distance(name, b.name))
	}).name
}

// distance is Levenshtein's: the fewest insertions, deletions and replacements
// of bytes that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
