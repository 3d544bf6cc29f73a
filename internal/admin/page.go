package admin

import (
	"bytes"
	"html/template"
	"net/http"
	"strconv"
	"strings"
)

// page is the status page: a table that reloads itself, without scripts, so that
// it works behind any policy and in a text browser.
var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>{{.Status.Name}}: {{.Readiness.Status}}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 48em; padding: 0 1em; color-scheme: light dark }
table { border-collapse: collapse; width: 100% } td { padding: .25em .75em .25em 0; border-bottom: 1px solid #8884; vertical-align: top }
td:first-child { width: 14em; opacity: .7 } td { overflow-wrap: anywhere }
.ready { color: #188038 } .degraded { color: #b06000 } .unready { color: #d93025 }
</style></head><body>
<h1>{{.Status.Name}} <span class="{{.Readiness.Status}}">{{.Readiness.Status}}</span></h1>
{{range .Readiness.Reasons}}<p>{{.}}</p>
{{end}}<table>
{{range .Rows}}<tr><td>{{index . 0}}</td><td>{{index . 1}}</td></tr>
{{end}}</table>
<p><a href="/metrics">metrics</a> · <a href="/api/v1/status">status as JSON</a> · <a href="/readyz">readiness</a> · rowferry {{.Status.Version}}</p>
</body></html>
`))

// front answers the status page. It shows what /api/v1/status shows.
func (s *Server) front(w http.ResponseWriter, _ *http.Request) {
	status := s.config.Relay.Status()
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{"Status": status, "Readiness": s.readiness(status), "Rows": rows(status)})
	if err != nil {
		http.Error(w, "the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	if _, err := w.Write(b.Bytes()); err != nil {
		s.config.Logger.Debug().Err(err).Msg("an HTTP answer could not be written; the caller has gone")
	}
}

// rows is what the table of the page says, in the order in which one asks.
func rows(s Status) [][2]string {
	yes := func(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }
	seconds := func(v *float64) string {
		if v == nil {
			return "unknown"
		}
		return strconv.FormatFloat(*v, 'f', -1, 64) + " s"
	}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	oldest := "none"
	if s.Backlog.OldestSeconds != nil {
		oldest = seconds(s.Backlog.OldestSeconds)
	}
	return [][2]string{
		{"leader", yes(s.Leader)},
		{"mode", s.Mode},
		{"paused", yes(s.Paused)},
		{"pending rows", count(s.Backlog.Pending)},
		{"oldest pending row", oldest},
		{"failed rows", count(s.Backlog.Failed)},
		{"published from the binlog", strconv.FormatUint(s.Published.Binlog, 10)},
		{"published by the sweep", strconv.FormatUint(s.Published.Sweep, 10)},
		{"in flight", count(s.Inflight.Events) + " events, " + count(s.Inflight.Bytes) + " bytes"},
		{"parked", parked(s.Parked)},
		{"source", s.Source.Address + " " + s.Source.Flavor},
		{"connected", yes(s.Source.Connected)},
		{"reads at", s.Source.Position},
		{"lag", seconds(s.Source.LagSeconds)},
		{"last event", seconds(s.Source.LastEventSeconds)},
		{"fence round trip", seconds(s.Source.FenceSeconds)},
		{"saved position", s.Checkpoint.Position},
		{"saved since", seconds(s.Checkpoint.AgeSeconds)},
		{"epoch", count(s.Checkpoint.Epoch)},
		{"gap", yes(s.Gap)},
		{"last error", s.LastError},
	}
}

// parked names the lanes that are parked, with the reasons.
func parked(lanes []Parked) string {
	if len(lanes) == 0 {
		return "none"
	}
	names := make([]string, len(lanes))
	for i, p := range lanes {
		names[i] = p.Lane + " (" + p.Reason + ")"
	}
	return strings.Join(names, ", ")
}
