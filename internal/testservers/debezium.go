package testservers

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// DebeziumServer is the command that starts the Debezium Server of scripts/provision
// debezium with further JVM options. It reads config/application.properties in the folder
// that the caller gives it to run in.
func DebeziumServer(jvm ...string) (*exec.Cmd, error) {
	if err := provision("debezium"); err != nil {
		return nil, err
	}
	home := filepath.Join(serversDir(), "debezium")
	runners, err := filepath.Glob(filepath.Join(home, "debezium-server-*runner.jar"))
	if err != nil {
		return nil, fmt.Errorf("looking for the runner of Debezium Server: %w", err)
	}
	if len(runners) != 1 {
		return nil, fmt.Errorf("%s has %d runners of Debezium Server, not one", home, len(runners))
	}
	classes := runners[0] + ":" + filepath.Join(home, "config", "lib") + ":" + filepath.Join(home, "lib", "*")
	return exec.Command("java", append(jvm, "-cp", classes, "io.debezium.server.Main")...), nil
}
