// Package version says which build is running. It promises the same answer to
// the version command, the metrics and the logs.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker: -X github.com/rowferry/rowferry/internal/version.version=v1.2.3
// and so on. Where they are empty, the build information of the Go toolchain answers.
var version, commit, date string

// Info describes a build. What is not known is "unknown", except for Version,
// which is "devel" for a build from no tagged version.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"` // of the commit, RFC 3339
	Go      string `json:"go"`
}

// String is the line that the version command prints.
func (i Info) String() string {
	return fmt.Sprintf("rowferry %s (commit %s, %s, %s)", i.Version, i.Commit, i.Date, i.Go)
}

// Get describes the running build.
func Get() Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return describe(Info{Version: version, Commit: commit, Date: date}, build)
}

// describe fills what the linker did not set from what the toolchain recorded.
func describe(set Info, build *debug.BuildInfo) Info {
	recorded := map[string]string{}
	for _, s := range build.Settings {
		recorded[s.Key] = s.Value
	}
	module := build.Main.Version
	if module == "(devel)" {
		module = ""
	}
	return Info{
		Version: cmp.Or(set.Version, module, "devel"),
		Commit:  cmp.Or(set.Commit, recorded["vcs.revision"], "unknown"),
		Date:    cmp.Or(set.Date, recorded["vcs.time"], "unknown"),
		Go:      runtime.Version(),
	}
}
