package version

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestDescribe(t *testing.T) {
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v0.9.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}}}
	devel := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for _, c := range []struct {
		name  string
		set   Info
		build *debug.BuildInfo
		want  Info
	}{
		{"the linker wins", Info{"v1.0.0", "def", "today", ""}, recorded, Info{"v1.0.0", "def", "today", runtime.Version()}},
		{"the toolchain helps out", Info{}, recorded, Info{"v0.9.0", "abc", "2026-01-02T03:04:05Z", runtime.Version()}},
		{"nothing is known", Info{}, devel, Info{"devel", "unknown", "unknown", runtime.Version()}},
	} {
		if got := describe(c.set, c.build); got != c.want {
			t.Errorf("%s: %+v, wanted %+v", c.name, got, c.want)
		}
	}
}

func TestGet(t *testing.T) {
	if i := Get(); i.Version == "" || i.Commit == "" || i.Date == "" || i.Go == "" {
		t.Errorf("something is empty: %+v", i)
	}
}
