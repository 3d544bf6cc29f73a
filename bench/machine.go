package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine is what the numbers were made on.
type machine struct {
	CPU       string  `json:"cpu"`
	CPUs      int     `json:"cpus"`
	MemoryGiB float64 `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	Go        string  `json:"go"`
	LoadBegin string  `json:"load_begin"` // 1, 5 and 15 minutes
	LoadEnd   string  `json:"load_end"`
}

// describeMachine reads what Linux tells; what it does not tell stays empty.
func describeMachine() machine {
	memory, _ := os.ReadFile("/proc/meminfo")              // best effort: a description
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // best effort: a description
	return machine{
		CPU: cpuModel(), CPUs: runtime.NumCPU(), MemoryGiB: kibOf(memory, "MemTotal:") / (1 << 20),
		Kernel: strings.TrimSpace(string(kernel)), Go: runtime.Version(), LoadBegin: load(),
	}
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read only
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// load returns the load averages: on a machine that others use too, they tell how
// much the absolute figures are worth.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg") // best effort: a description
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// serverSettings asks the database for what its speed depends on.
func (b *bench) serverSettings(ctx context.Context) ([]string, error) {
	var s []string
	for _, name := range []string{
		"version", "sync_binlog", "innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size", "innodb_redo_log_capacity",
		"binlog_format", "binlog_row_image", "binlog_row_metadata", "gtid_mode", "innodb_flush_method",
	} {
		var value string
		if err := b.servers.db.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&value); err != nil {
			return nil, fmt.Errorf("reading the setting %s: %w", name, err)
		}
		s = append(s, "mysql "+name+"="+value)
	}
	return append(s, "rocketmq 5.4.0 flushDiskType=ASYNC_FLUSH waitTimeMillsInSendQueue=5000, JVM "+brokerJVM), nil
}

// commit names what is measured; "" outside a checkout.
func commit(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--tags").Output() // best effort: a description
	return strings.TrimSpace(string(out))
}
