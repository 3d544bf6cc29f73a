package binlog

import my "github.com/go-mysql-org/go-mysql/mysql"

// Times as servers wrote them before MySQL 5.6 and MariaDB 10.0. Tables that were
// made then, or by a MariaDB with mysql56_temporal_format=OFF, still have them.
// With digits behind the second they are MariaDB's own: one number, big-endian,
// counted in units of the last digit.

// oldTemporalLength is that of a time with p digits behind the second, -1 if there
// can be no such.
func oldTemporalLength(t byte, p int) int {
	if p > 6 {
		return -1
	}
	switch t {
	case my.MYSQL_TYPE_TIME:
		return [...]int{3, 4, 4, 5, 5, 5, 6}[p]
	case my.MYSQL_TYPE_DATETIME:
		return [...]int{8, 6, 6, 7, 7, 7, 8}[p]
	}
	return 4 + (p+1)/2 // TIMESTAMP
}

func (c *columnPlan) appendOldTemporal(b, raw []byte, p int) []byte {
	switch {
	case c.real == my.MYSQL_TYPE_TIMESTAMP && p == 0:
		return appendTimestamp(b, int64(littleEndian(raw)), 0, 0, c.zone)
	case c.real == my.MYSQL_TYPE_TIMESTAMP:
		return appendTimestamp(b, int64(bigEndian(raw[:4])), micros(bigEndian(raw[4:]), p), p, c.zone)
	case c.real == my.MYSQL_TYPE_DATETIME && p == 0:
		v := littleEndian(raw)
		d, t := v/1_000_000, v%1_000_000
		return appendClock(append(appendDate(b, d/10_000, d/100%100, d%100), ' '), t/10_000, t/100%100, t%100)
	case c.real == my.MYSQL_TYPE_DATETIME:
		return appendOldDatetime(b, bigEndian(raw), p)
	case p == 0:
		const bits = 24 // of a TIME: hours, minutes and seconds in two decimal digits each
		v := int64(littleEndian(raw)<<(64-bits)) >> (64 - bits)
		t := uint64(max(v, -v))
		return appendClock(appendSign(b, v), t/10_000, t/100%100, t%100)
	}
	return appendOldTime(b, int64(bigEndian(raw)), p)
}

// micros makes microseconds of a number of p decimal digits.
func micros(v uint64, p int) uint64 { return v * 1_000_000 / power10(p) }

func power10(p int) uint64 {
	v := uint64(1)
	for range p {
		v *= 10
	}
	return v
}

func appendSign(b []byte, v int64) []byte {
	if v < 0 {
		return append(b, '-')
	}
	return b
}

// appendOldDatetime: months of 32 days, years of 13 months.
func appendOldDatetime(b []byte, v uint64, p int) []byte {
	unit := power10(p)
	seconds, days := v/unit%86_400, v/unit/86_400
	b = append(appendDate(b, days/32/13, days/32%13, days%32), ' ')
	b = appendClock(b, seconds/3600, seconds/60%60, seconds%60)
	return appendFraction(b, micros(v%unit, p), p)
}

// appendOldTime: zero stands one second behind the greatest time.
func appendOldTime(b []byte, v int64, p int) []byte {
	const zeroSeconds = 838*3600 + 59*60 + 59 + 1
	unit := power10(p)
	v -= zeroSeconds * int64(unit)
	b = appendSign(b, v)
	t := uint64(max(v, -v))
	seconds := t / unit
	return appendFraction(appendClock(b, seconds/3600, seconds/60%60, seconds%60), micros(t%unit, p), p)
}
