package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// debeziumJava is the oldest Java that Debezium Server runs on.
const debeziumJava = 21

// DebeziumServer is the command that starts the Debezium Server of scripts/provision
// debezium with further JVM options. It reads config/application.properties in the folder
// that the caller gives it to run in. It needs a Java 21 or later among JAVA_HOME, the
// path and /usr/lib/jvm.
func DebeziumServer(jvm ...string) (*exec.Cmd, error) {
	if err := provision("debezium"); err != nil {
		return nil, err
	}
	java, err := javaSince(debeziumJava)
	if err != nil {
		return nil, fmt.Errorf("starting Debezium Server: %w", err)
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
	return exec.Command(java, append(jvm, "-cp", classes, "io.debezium.server.Main")...), nil
}

var javaRelease = regexp.MustCompile(`(?m)^JAVA_VERSION="(\d+)`)

// javaSince finds a Java of at least a version.
func javaSince(version int) (string, error) {
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if inPath, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, inPath)
	}
	installed, err := filepath.Glob("/usr/lib/jvm/*/bin/java")
	if err != nil {
		return "", err
	}
	for _, java := range append(candidates, installed...) {
		if javaVersion(java) >= version {
			return java, nil
		}
	}
	return "", fmt.Errorf("no Java %d or later is installed: set JAVA_HOME to one", version)
}

// javaVersion reads the file that every JDK and JRE has at its root; 0 if there is none.
func javaVersion(java string) int {
	real, err := filepath.EvalSymlinks(java)
	if err != nil {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(real), "..", "release"))
	if err != nil {
		return 0
	}
	found := javaRelease.FindSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(found[1])) // digits, by the expression
	return n
}
