package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/rowferry/rowferry/"
)

// source is one Go file of the repository.
type source struct {
	path string // from the root, with slashes
	text []byte
	ast  *ast.File
	fset *token.FileSet
}

func (s source) dir() string    { return path.Dir(s.path) }
func (s source) isTest() bool   { return strings.HasSuffix(s.path, "_test.go") }
func (s source) lineCount() int { return bytes.Count(s.text, []byte("\n")) }

// imports returns the paths, those of this module without its name in front.
func (s source) imports(t *testing.T) (ours, others []string) {
	t.Helper()
	for _, i := range s.ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if own, ok := strings.CutPrefix(p, module); ok {
			ours = append(ours, own)
		} else {
			others = append(others, p)
		}
	}
	return ours, others
}

// sources parses every Go file. A folder that begins with a dot, such as the one
// that holds the test servers, is none of ours.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	walk(t, func(name string, text []byte) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			t.Errorf("parsing: %v", err)
			return
		}
		all = append(all, source{name, text, file, fset})
	})
	if len(all) < 50 {
		t.Fatalf("only %d Go files found: the walk looks in the wrong place", len(all))
	}
	return all
}

func walk(t *testing.T, visit func(name string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			if name != "." && name != ".ci" && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(full)
		if os.IsNotExist(err) {
			return nil // somebody's temporary file
		}
		if err != nil {
			return err
		}
		visit(name, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// under reports whether a package is prefix or lies below it.
func under(pkg, prefix string) bool { return pkg == prefix || strings.HasPrefix(pkg, prefix+"/") }

// wrongImport says why a package must not import another of this module; empty:
// it may.
func wrongImport(from, to string) string {
	switch {
	case under(to, "cmd") || under(to, "bench") || under(to, "chaos") || under(to, "demo") && !under(from, "demo") && !under(from, "bench"):
		return "a program is imported by nobody, except that the benchmark uses the demo's parts"
	case under(from, "pkg/outbox"):
		return "pkg/outbox imports the standard library only"
	case under(from, "pkg/router") && from != "pkg/router" && (to == "pkg/outbox" || to == "pkg/router/sinktest"):
	case under(from, "pkg") && to != "pkg/outbox":
		return "a package of pkg imports pkg/outbox and libraries only"
	case under(from, "migrations"):
		return "migrations are imported, they import nothing of ours"
	case to == "internal/app" && !under(from, "cmd") && from != "internal/doctor":
		return "internal/app joins everything; only cmd and the doctor, which tries it out, use it"
	}
	return ""
}

// Tests may cross the rooms, since they put them together on purpose.
func TestArrows(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		ours, others := s.imports(t)
		for _, to := range ours {
			if why := wrongImport(s.dir(), to); why != "" {
				t.Errorf("%s imports %s: %s", s.path, to, why)
			}
			if to == "internal/testservers" && !isTestTool(s.dir()) {
				t.Errorf("%s imports %s, which starts servers for tests", s.path, to)
			}
		}
		for _, to := range others {
			if s.dir() == "pkg/outbox" && strings.Contains(to, ".") {
				t.Errorf("%s imports %s: pkg/outbox imports the standard library only", s.path, to)
			}
			if to == "testing" && !isTestTool(s.dir()) {
				t.Errorf("%s imports testing, which brings its flags into the program", s.path)
			}
		}
	}
}

// isTestTool names the packages that only tests, the demo, the benchmark and chaos use.
func isTestTool(dir string) bool {
	for _, prefix := range []string{"internal/testservers", "internal/e2e", "pkg/router/sinktest", "pkg/checkpoint/checkpointtest", "demo", "bench", "chaos"} {
		if under(dir, prefix) {
			return true
		}
	}
	return false
}

// The rule that judges must itself refuse what it is there for.
func TestWrongImport(t *testing.T) {
	for _, c := range []struct {
		from, to string
		wrong    bool
	}{
		{"pkg/outbox", "pkg/router", true},
		{"pkg/binlog", "pkg/outbox", false},
		{"pkg/binlog", "pkg/relay", true},
		{"pkg/relay", "pkg/router", true},
		{"pkg/ledger", "internal/config", true},
		{"pkg/router/rocketmq", "pkg/outbox", false},
		{"pkg/router/rocketmq", "pkg/router", true},
		{"pkg/router", "pkg/router/rocketmq", true},
		{"pkg/checkpoint", "cmd/rowferry", true},
		{"internal/config", "pkg/router", false},
		{"internal/config", "internal/app", true},
		{"internal/doctor", "internal/app", false},
		{"cmd/rowferry", "internal/app", false},
		{"internal/app", "pkg/relay", false},
		{"internal/app", "demo/shop", true},
		{"demo", "demo/shop", false},
		{"bench", "demo/consumer", false},
		{"demo", "bench", true},
		{"internal/e2e", "chaos", true},
		{"migrations", "pkg/outbox", true},
	} {
		if got := wrongImport(c.from, c.to); (got != "") != c.wrong {
			t.Errorf("%s to %s: %q", c.from, c.to, got)
		}
	}
}

func TestFilesStayShort(t *testing.T) {
	const linesMax = 500
	for _, s := range sources(t) {
		if n := s.lineCount(); n > linesMax {
			t.Errorf("%s has %d lines, more than %d: it has become two things", s.path, n, linesMax)
		}
	}
}

// A package comment says what the package promises, so a line that only names it
// is none.
func TestPackagesSayWhatTheyPromise(t *testing.T) {
	comments := map[string]string{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		comments[s.dir()] += s.ast.Doc.Text()
	}
	for dir, text := range comments {
		if len(strings.Fields(text)) < 10 {
			t.Errorf("package %s has no comment that says what it promises: %q", dir, text)
		}
	}
}

// sleepers may call time.Sleep outside of tests. Everything else waits for a
// signal or a timer together with its context, or it cannot be stopped.
var sleepers = []string{"internal/testservers", "demo", "bench"}

func TestNobodySleeps(t *testing.T) {
	for _, s := range sources(t) {
		allowed := s.isTest()
		for _, prefix := range sleepers {
			allowed = allowed || under(s.dir(), prefix)
		}
		if allowed {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" {
				if x, ok := call.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep cannot be stopped; wait for a context and a timer", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// unfinished finds what a reader would take for done.
var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b|\bt\.Skip(Now|f)?\(`)

func TestNothingIsLeftUndone(t *testing.T) {
	for _, s := range sources(t) {
		if s.dir() == "internal/archtest" {
			continue
		}
		for i, line := range strings.Split(string(s.text), "\n") {
			if found := unfinished.FindString(line); found != "" {
				t.Errorf("%s:%d holds %s", s.path, i+1, found)
			}
		}
	}
}

// machinePath finds paths that exist on the machine of whoever wrote them. In a
// Dockerfile they are those of the image.
var machinePath = regexp.MustCompile(`(^|[\s"'=(` + "`" + `])(/home/|/root/|/Users/|/work/|C:\\)\S+`)

func TestNoPathsOfOneMachine(t *testing.T) {
	seen := 0
	walk(t, func(name string, text []byte) {
		if strings.HasPrefix(name, "internal/archtest/") || path.Base(name) == "Dockerfile" || bytes.IndexByte(text, 0) >= 0 {
			return
		}
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			if found := machinePath.FindString(line); found != "" {
				t.Errorf("%s:%d names a path of one machine:%s", name, i+1, found)
			}
		}
	})
	if seen < 50 {
		t.Errorf("only %d files were looked at", seen)
	}
	for _, text := range []string{`dir = "/home/me/x"`, "cd /root/src", "(/work/main)"} {
		if machinePath.FindString(text) == "" {
			t.Errorf("%q is not found", text)
		}
	}
}
