package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRelay says what a test wants it to.
type fakeRelay struct {
	status  Status
	reasons []string
	sweep   func(context.Context) (outbox.Tally, error)
	topics  func() (Topics, error)
	freeze  func(RefreezeRequest) (Refreezing, error)
	pause   func(on bool) (Pausing, error)
}

func (f *fakeRelay) SetPaused(_ context.Context, on bool) (Pausing, error) { return f.pause(on) }

func (f *fakeRelay) Topics(context.Context) (Topics, error) { return f.topics() }
func (f *fakeRelay) Refreeze(_ context.Context, ask RefreezeRequest) (Refreezing, error) {
	return f.freeze(ask)
}

func (f *fakeRelay) Status() Status  { return f.status }
func (f *fakeRelay) Ready() []string { return f.reasons }
func (f *fakeRelay) Sweep(ctx context.Context) (outbox.Tally, error) {
	return f.sweep(ctx)
}

func start(t *testing.T, relay *fakeRelay, token string) *Server {
	t.Helper()
	if relay.status.Name == "" {
		relay.status.Name = "rowferry"
	}
	s, err := Start(Config{Addr: "127.0.0.1:0", Token: token, Relay: relay, Metrics: prometheus.NewRegistry(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// client returns a client of s whose calls end with the test.
func client(s *Server, token string) *Client { return NewClient(s.Addr(), token) }

func TestReadyz(t *testing.T) {
	for _, c := range []struct {
		name    string
		relay   fakeRelay
		query   string
		code    int
		status  string
		reasons string
	}{
		{"ready, leading or not", fakeRelay{}, "", 200, Ready, ""},
		{"not leading, asked for", fakeRelay{}, "?leader=1", 503, Unready, "this relay does not lead"},
		{"leading, asked for", fakeRelay{status: Status{Leader: true}}, "?leader=1", 200, Ready, ""},
		{"a gap and not leading, asked for", fakeRelay{status: Status{Gap: true}}, "?leader=1", 503, Unready, "this relay does not lead"},
		{"not ready", fakeRelay{reasons: []string{"a", "b"}, status: Status{Gap: true}}, "", 503, Unready, "a;b"},
		{"a parked topic", fakeRelay{status: Status{Parked: []Parked{{Lane: "orders/3", Reason: "topic_missing"}}}}, "", 200, Degraded, "orders/3 is parked: topic_missing"},
		{"a gap", fakeRelay{status: Status{Gap: true}}, "", 200, Degraded, "a part of the binlog was lost; the sweep is looking for its rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &Server{config: Config{Relay: &c.relay}}
			w := httptest.NewRecorder()
			s.handler().ServeHTTP(deadlines{w}, httptest.NewRequest("GET", "/readyz"+c.query, nil))
			var got Readiness
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if w.Code != c.code || got.Status != c.status || strings.Join(got.Reasons, ";") != c.reasons || got.Reasons == nil {
				t.Errorf("%d %+v", w.Code, got)
			}
		})
	}
}

// deadlines is a recorder that takes deadlines, as a connection does.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetWriteDeadline(time.Time) error { return nil }

func TestStatusJSON(t *testing.T) {
	s := start(t, &fakeRelay{status: Status{Name: "rowferry", Source: Source{LagSeconds: Seconds(1500 * time.Microsecond)}}}, "")
	response, err := http.Get("http://" + s.Addr() + "/api/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	const want = `{"name":"rowferry","version":"","leader":false,"mode":"","paused":false,` +
		`"source":{"address":"","flavor":"","connected":false,"position":"","lag_seconds":0.002,"last_event_seconds":null,"fence_seconds":null},` +
		`"checkpoint":{"position":"","age_seconds":null,"epoch":0},"gap":false,"backlog":{"pending":0,"oldest_seconds":null,"failed":0},` +
		`"published":{"binlog":0,"sweep":0},"inflight":{"events":0,"bytes":0},"parked":[],"last_error":""}`
	if got := strings.TrimSpace(string(body)); got != want {
		t.Errorf("got    %s\nwanted %s", got, want)
	}
}

// Actions and profiles: who may and who may not.
func TestGuard(t *testing.T) {
	const here, elsewhere = "127.0.0.1:40000", "10.1.2.3:40000"
	for _, c := range []struct {
		name, token, from, host string
		header                  map[string]string
		want                    int
	}{
		{"this host, no token needed", "", here, "127.0.0.1:8390", nil, 200},
		{"this host by IPv6", "", "[::1]:4", "[::1]:8390", nil, 200},
		{"this host, by name, token configured", "s3cret", here, "localhost:8390", nil, 200},
		{"this host, wrong token", "s3cret", here, "localhost:8390", map[string]string{"Authorization": "Bearer s3cre"}, 401},
		{"this host, token that nobody configured", "", here, "localhost:8390", map[string]string{"Authorization": "Bearer x"}, 401},
		{"this host, empty token that nobody configured", "", elsewhere, "relay:8390", map[string]string{"Authorization": "Bearer "}, 401},
		{"elsewhere, no token configured", "", elsewhere, "relay:8390", nil, 403},
		{"elsewhere, says it is here", "", elsewhere, "localhost", nil, 403},
		{"elsewhere, no token shown", "s3cret", elsewhere, "relay:8390", nil, 401},
		{"elsewhere, right token", "s3cret", elsewhere, "relay:8390", map[string]string{"Authorization": "Bearer s3cret"}, 200},
		{"elsewhere, other scheme", "s3cret", elsewhere, "relay:8390", map[string]string{"Authorization": "Basic s3cret"}, 401},
		{"behind a proxy on this host", "", here, "localhost:8390", map[string]string{"X-Forwarded-For": "10.1.2.3"}, 403},
		{"a web page of another origin", "", here, "localhost:8390", map[string]string{"Origin": "https://evil.example"}, 403},
		{"a web page, as new browsers say", "", here, "localhost:8390", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"a web page whose name was rebound", "", here, "evil.example", map[string]string{"Sec-Fetch-Site": "same-origin"}, 403},
	} {
		for _, target := range []struct{ method, path, body string }{{"POST", "/api/v1/sweep", ""}, {"POST", "/api/v1/pause", ""}, {"POST", "/api/v1/resume", ""}, {"GET", "/debug/pprof/", ""}, {"GET", "/debug/pprof/cmdline", ""},
			{"GET", "/api/v1/topics", ""}, {"POST", "/api/v1/topics/refreeze", `{"topic": "orders"}`}} {
			if target.method == "GET" && c.header["Origin"] != "" {
				continue // browsers send no Origin with a plain GET
			}
			done := false
			s := &Server{config: Config{Token: c.token, Logger: zerolog.Nop(), Relay: &fakeRelay{
				sweep:  func(context.Context) (outbox.Tally, error) { done = true; return outbox.Tally{}, nil },
				topics: func() (Topics, error) { done = true; return Topics{}, nil },
				freeze: func(RefreezeRequest) (Refreezing, error) { done = true; return Refreezing{}, nil },
				pause:  func(bool) (Pausing, error) { done = true; return Pausing{}, nil },
			}}}
			r := httptest.NewRequest(target.method, target.path, strings.NewReader(target.body))
			r.RemoteAddr, r.Host = c.from, c.host
			for name, value := range c.header {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			s.handler().ServeHTTP(deadlines{w}, r)
			if w.Code != c.want || done && c.want != 200 {
				t.Errorf("%s, %s: %d %s", c.name, target.path, w.Code, w.Body)
			}
		}
	}
}

// The page holds what the status says, and nothing of it as markup.
func TestPage(t *testing.T) {
	relay := &fakeRelay{reasons: []string{"<b>paused</b>"}, status: Status{Name: "north", LastError: "<script>x</script>",
		Backlog: Backlog{Pending: 4711, OldestSeconds: Seconds(2500 * time.Millisecond)}}}
	s := &Server{config: Config{Relay: relay}}
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(deadlines{w}, httptest.NewRequest("GET", "/", nil))
	text := w.Body.String()
	for _, want := range []string{"<title>north: unready</title>", "&lt;b&gt;paused", "4711", "2.5 s", "&lt;script&gt;x", "unknown"} {
		if !strings.Contains(text, want) {
			t.Errorf("wanted %q in %s", want, text)
		}
	}
	if w.Code != 200 || strings.Contains(text, "<script") || w.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	w = httptest.NewRecorder()
	s.handler().ServeHTTP(deadlines{w}, httptest.NewRequest("GET", "/nothing", nil))
	if w.Code != 404 {
		t.Errorf("a path that is none: %d", w.Code)
	}
}

func TestOpenToAll(t *testing.T) {
	s := &Server{config: Config{Token: "s3cret", Relay: &fakeRelay{}, Metrics: prometheus.NewRegistry()}}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/api/v1/status"} {
		r := httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = "10.1.2.3:4"
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(deadlines{w}, r)
		if w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(deadlines{w}, httptest.NewRequest("GET", "/api/v1/sweep", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET of an action: %d", w.Code)
	}
}

// A scrape sees what is true at its moment.
func TestMetricsAreRefreshed(t *testing.T) {
	reg := prometheus.NewRegistry()
	lag := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lag_seconds", Help: "Lag."})
	reg.MustRegister(lag)
	var scrapes atomic.Int64
	s := &Server{config: Config{Metrics: reg, Refresh: func() { lag.Set(float64(scrapes.Add(1))) }}}
	for _, want := range []string{"lag_seconds 1\n", "lag_seconds 2\n"} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(deadlines{w}, httptest.NewRequest("GET", "/metrics", nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("wanted %q in %s", want, w.Body)
		}
	}
}

func TestClient(t *testing.T) {
	relay := &fakeRelay{
		status:  Status{Name: "north", Backlog: Backlog{Pending: 7}},
		reasons: []string{"paused"},
		sweep:   func(context.Context) (outbox.Tally, error) { return outbox.Tally{Sent: 3, Released: 1}, nil },
	}
	s := start(t, relay, "s3cret")
	ctx := context.Background()
	if err := client(s, "").Live(ctx); err != nil {
		t.Errorf("Live: %v", err)
	}
	if r, err := client(s, "").Ready(ctx); err != nil || r.Status != Unready || r.Reasons[0] != "paused" {
		t.Errorf("Ready: %+v, %v", r, err)
	}
	if got, err := client(s, "").Status(ctx); err != nil || got.Name != "north" || got.Backlog.Pending != 7 {
		t.Errorf("Status: %+v, %v", got, err)
	}
	if tally, err := client(s, "s3cret").Sweep(ctx); err != nil || tally != (outbox.Tally{Sent: 3, Released: 1}) {
		t.Errorf("Sweep: %+v, %v", tally, err)
	}
	if _, err := client(s, "wrong").Sweep(ctx); err == nil || errors.Is(err, ErrNoRelay) || !strings.Contains(err.Error(), "the token is wrong") {
		t.Errorf("Sweep with a wrong token: %v", err)
	}
	relay.sweep = func(context.Context) (outbox.Tally, error) { return outbox.Tally{}, errors.New("database away") }
	if _, err := client(s, "s3cret").Sweep(ctx); err == nil || errors.Is(err, ErrNoRelay) || !strings.Contains(err.Error(), "database away") {
		t.Errorf("Sweep that fails: %v", err)
	}
}

// Nobody there, or somebody else: the commands then look for themselves.
func TestClientWithoutRelay(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<html>hello") }))
	defer page.Close()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer api.Close()
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	for name, addr := range map[string]string{"nobody": nobody, "a page": page.Listener.Addr().String(),
		"another API": api.Listener.Addr().String(), "404": missing.Listener.Addr().String()} {
		c := NewClient(addr, "")
		_, statusErr := c.Status(context.Background())
		_, readyErr := c.Ready(context.Background())
		for _, err := range []error{statusErr, readyErr, c.Live(context.Background())} {
			if !errors.Is(err, ErrNoRelay) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := NewClient(nobody, "").Sweep(cancelled); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoRelay) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDialable(t *testing.T) {
	for listen, want := range map[string]string{":8390": "127.0.0.1:8390", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1",
		"10.0.0.1:2": "10.0.0.1:2", "relay:3": "relay:3", "odd": "odd"} {
		if got := dialable(listen); got != want {
			t.Errorf("%s is dialled as %s: wanted %s", listen, got, want)
		}
	}
}

// Close ends a running action and lets its answer out.
func TestCloseEndsActions(t *testing.T) {
	began := make(chan struct{})
	relay := &fakeRelay{sweep: func(ctx context.Context) (outbox.Tally, error) {
		close(began)
		<-ctx.Done()
		return outbox.Tally{}, errors.New("stopped by the end of the process")
	}}
	s, err := Start(Config{Addr: "127.0.0.1:0", Relay: relay, Metrics: prometheus.NewRegistry(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := client(s, "").Sweep(context.Background())
		answer <- err
	}()
	<-began
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-answer; err == nil || !strings.Contains(err.Error(), "stopped by the end") {
		t.Errorf("the caller was told: %v", err)
	}
}

// Close does not wait longer than its context for an action that does not end.
func TestCloseCutsConnections(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	relay := &fakeRelay{sweep: func(context.Context) (outbox.Tally, error) {
		close(began)
		<-release
		return outbox.Tally{}, nil
	}}
	s, err := Start(Config{Addr: "127.0.0.1:0", Relay: relay, Metrics: prometheus.NewRegistry(), Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := client(s, "").Sweep(context.Background())
		answer <- err
	}()
	<-began
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
	if err := <-answer; !errors.Is(err, ErrNoRelay) {
		t.Errorf("the caller was told: %v", err)
	}
	close(release)
}

func TestAddressInUse(t *testing.T) {
	s := start(t, &fakeRelay{}, "")
	_, err := Start(Config{Addr: s.Addr(), Logger: zerolog.Nop()})
	if err == nil || !strings.Contains(err.Error(), "ROWFERRY_HTTP_ADDR="+s.Addr()) {
		t.Errorf("a second server: %v", err)
	}
}

// What net/http has to say goes to the log, and a panic of a handler to no caller.
func TestHandlerPanicIsLogged(t *testing.T) {
	lines := make(logged, 10)
	relay := &fakeRelay{sweep: func(context.Context) (outbox.Tally, error) { panic("a bug") }}
	s, err := Start(Config{Addr: "127.0.0.1:0", Relay: relay, Metrics: prometheus.NewRegistry(), Logger: zerolog.New(lines)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(s, "").Sweep(context.Background()); !errors.Is(err, ErrNoRelay) {
		t.Errorf("the caller was told: %v", err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if line := <-lines; !strings.Contains(line, "a bug") {
		t.Errorf("the log says %q", line)
	}
}

// logged hands the lines of a log to the test.
type logged chan string

func (l logged) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
