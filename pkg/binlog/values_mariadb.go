package binlog

import "strconv"

// appendMariaDB prints a value of one of MariaDB's own types. ok is false for one
// whose text is not certain.
func appendMariaDB(b []byte, dataType string, raw []byte) (out []byte, ok bool) {
	var value [16]byte // trailing zeros were cut off
	size := map[string]int{"uuid": 16, "inet6": 16, "inet4": 4}[dataType]
	if len(raw) > size {
		return b, false
	}
	copy(value[:], raw)
	switch dataType {
	case "uuid":
		return appendMariaDBUUID(b, value)
	case "inet6":
		return appendInet6(b, value), true
	}
	return appendInet4(b, value[:4]), true
}

// appendMariaDBUUID prints a UUID of MariaDB, which comes in its natural order.
// Tables of early versions may hold it with its parts reversed, told by the
// variant standing where the version should; that form is not guessed at.
func appendMariaDBUUID(b []byte, u [16]byte) ([]byte, bool) {
	if reversed := u[6]&0xc0 == 0x80 && u[8] >= 0x10 && u[8] < 0x60; reversed {
		return b, false
	}
	return appendUUID(b, u[:]), true
}

func appendInet4(b, address []byte) []byte {
	for i, part := range address {
		if i > 0 {
			b = append(b, '.')
		}
		b = strconv.AppendUint(b, uint64(part), 10)
	}
	return b
}

// appendInet6 prints an address as MariaDB does, which is not quite what RFC 5952
// asks for: a single zero group becomes :: too, and addresses of IPv4 keep their
// form where six groups are zero, or five before ffff.
func appendInet6(b []byte, address [16]byte) []byte {
	var groups [8]uint64
	for i := range groups {
		groups[i] = bigEndian(address[2*i : 2*i+2])
	}
	gap, length := longestZeros(groups)
	for i := 0; i < len(groups); i++ {
		if i == gap {
			if i == 0 {
				b = append(b, ':')
			}
			b = append(b, ':')
			i += length - 1
			continue
		}
		if i == 6 && gap == 0 && (length == 6 || length == 5 && groups[5] == 0xffff) {
			return appendInet4(b, address[12:])
		}
		b = strconv.AppendUint(b, groups[i], 16)
		if i < len(groups)-1 {
			b = append(b, ':')
		}
	}
	return b
}

// longestZeros finds the first of the longest runs of zero groups; gap is -1 if
// there is none.
func longestZeros(groups [8]uint64) (gap, length int) {
	gap = -1
	for i := 0; i < len(groups); i++ {
		n := 0
		for i+n < len(groups) && groups[i+n] == 0 {
			n++
		}
		if n > length {
			gap, length = i, n
		}
		i += n
	}
	return gap, length
}
