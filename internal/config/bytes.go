package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size. It is written as a whole number with one of the units B, KiB,
// MiB, GiB, or none for bytes.
type Bytes int64

var units = []struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

const wantedBytes = "a size such as 1048576, 64KiB or 1MiB"

// ParseBytes reads a size. MB and the like are refused, because they mean
// 1000 × 1000 to some and 1024 × 1024 to others.
func ParseBytes(s string) (Bytes, error) {
	digits, size := s, int64(1)
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.name); ok {
			digits, size = d, u.size
			break
		}
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(digits, " "), 10, 63)
	if err != nil || int64(n) > math.MaxInt64/size {
		return 0, errors.New("wanted " + wantedBytes)
	}
	return Bytes(int64(n) * size), nil
}

// String writes the size with the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range units {
		if int64(b)%u.size == 0 && b != 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return "0"
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = ParseBytes(string(text))
	return err
}
