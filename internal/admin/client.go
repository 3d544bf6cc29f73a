package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// ErrNoRelay is returned by a Client when nothing answers at the address, or
// something that is no relay.
var ErrNoRelay = errors.New("no relay answers")

// Client asks a running relay. It holds no connection between calls.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// NewClient returns a client for the address that the relay listens on; where
// that is every address, loopback is asked. token may be empty.
func NewClient(addr, token string) *Client {
	transport := &http.Transport{
		DisableKeepAlives:   true,
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		TLSHandshakeTimeout: 2 * time.Second,
	}
	return &Client{base: "http://" + dialable(addr), token: token, http: &http.Client{Transport: transport}}
}

// dialable turns an address to listen on into one to dial.
func dialable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	switch ip := net.ParseIP(host); {
	case host == "" || ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6zero):
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// probeTimeout bounds the questions that a relay answers from memory.
const probeTimeout = 5 * time.Second

// Live returns nil if the process answers.
func (c *Client) Live(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	body, code, err := c.do(ctx, http.MethodGet, "/livez", "")
	if err == nil && (code != http.StatusOK || string(body) != "ok\n") {
		err = fmt.Errorf("%w: %s says %d", ErrNoRelay, c.base, code)
	}
	return err
}

// Ready returns the relay's readiness; unready is no error.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var answer Readiness
	err := c.ask(ctx, http.MethodGet, "/readyz", &answer)
	if err == nil && answer.Status == "" {
		err = fmt.Errorf("%w: what answers at %s is something else", ErrNoRelay, c.base)
	}
	return answer, err
}

// Status returns what the relay says about itself.
func (c *Client) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var answer Status
	err := c.ask(ctx, http.MethodGet, "/api/v1/status", &answer)
	if err == nil && answer.Name == "" {
		err = fmt.Errorf("%w: what answers at %s is something else", ErrNoRelay, c.base)
	}
	return answer, err
}

// Sweep has the relay sweep once, and waits for it as long as ctx allows.
func (c *Client) Sweep(ctx context.Context) (outbox.Tally, error) {
	var answer outbox.Tally
	err := c.ask(ctx, http.MethodPost, "/api/v1/sweep", &answer)
	return answer, err
}

// Topics returns the frozen queue lists, as the relay compares them with the brokers.
func (c *Client) Topics(ctx context.Context) (Topics, error) {
	var answer Topics
	err := c.ask(ctx, http.MethodGet, "/api/v1/topics", &answer)
	return answer, err
}

// Refreeze asks what another queue list would move, or has it replaced, and waits for
// that as long as ctx allows.
func (c *Client) Refreeze(ctx context.Context, ask RefreezeRequest) (Refreezing, error) {
	var answer Refreezing
	text, err := json.Marshal(ask)
	if err != nil {
		return answer, fmt.Errorf("asking the relay: %w", err)
	}
	err = c.askWith(ctx, http.MethodPost, "/api/v1/topics/refreeze", string(text), &answer)
	return answer, err
}

// ask reads a JSON answer. A refusal or failure that the relay explains is an
// error with its words.
func (c *Client) ask(ctx context.Context, method, path string, answer any) error {
	return c.askWith(ctx, method, path, "", answer)
}

func (c *Client) askWith(ctx context.Context, method, path, request string, answer any) error {
	body, code, err := c.do(ctx, method, path, request)
	if err != nil {
		return err
	}
	var f failure
	if err := json.Unmarshal(body, &f); err == nil && f.Error != "" {
		return fmt.Errorf("the relay at %s says: %s", c.base, f.Error)
	}
	if code != http.StatusOK && code != http.StatusServiceUnavailable {
		return fmt.Errorf("%w: %s%s says %d", ErrNoRelay, c.base, path, code)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%w: what answers at %s is something else", ErrNoRelay, c.base)
	}
	return nil
}

// do makes one request. Every way of getting no answer is ErrNoRelay, except for
// the end of the caller's own context.
func (c *Client) do(ctx context.Context, method, path, request string) (body []byte, code int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(request))
	if err != nil {
		return nil, 0, fmt.Errorf("asking %s: %w", c.base, err)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if who := CallerOf(ctx); who != "" {
		r.Header.Set(callerHeader, who)
	}
	response, err := c.http.Do(r)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, 0, ctx.Err()
		}
		return nil, 0, fmt.Errorf("%w at %s: %w", ErrNoRelay, c.base, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to the end or is given up
	const bytesMax = 4 << 20
	body, err = io.ReadAll(io.LimitReader(response.Body, bytesMax))
	if err != nil {
		return nil, 0, fmt.Errorf("reading the answer of %s: %w", c.base, err)
	}
	return body, response.StatusCode, nil
}
