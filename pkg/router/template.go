package router

import (
	"fmt"
	"strings"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// variable reads one named value of an event; header is the NAME of {header:NAME}.
type variable func(e *outbox.Event, header string) string

var topicVariables = map[string]variable{
	"table":          func(e *outbox.Event, _ string) string { return e.Table.Name },
	"schema":         func(e *outbox.Event, _ string) string { return e.Table.Schema },
	"aggregate_type": func(e *outbox.Event, _ string) string { return e.AggregateType },
	"event_type":     func(e *outbox.Event, _ string) string { return e.Type },
	"header:NAME":    headerValue,
}

// keyVariables has more: an id in a topic would make a topic for each row.
var keyVariables = map[string]variable{
	"table":          topicVariables["table"],
	"schema":         topicVariables["schema"],
	"aggregate_type": topicVariables["aggregate_type"],
	"event_type":     topicVariables["event_type"],
	"header:NAME":    headerValue,
	"aggregate_id":   func(e *outbox.Event, _ string) string { return e.AggregateID },
	"id":             func(e *outbox.Event, _ string) string { return e.ID },
}

func headerValue(e *outbox.Event, name string) string {
	for _, h := range e.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// template is text with variables in braces, compiled once.
type template struct{ parts []part }

type part struct {
	text   string   // literal, where value is nil
	value  variable // nil for a literal
	header string
}

// compileOptional returns nil for an empty template, which means the default.
func compileOptional(name, s string, known map[string]variable) (*template, error) {
	if s == "" {
		return nil, nil
	}
	t, err := compile(s, known)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", name, s, err)
	}
	for _, p := range t.parts {
		if name == "ROWFERRY_ROUTE_TOPIC" && p.value == nil && topicSafe(p.text) != p.text {
			return nil, fmt.Errorf("%s=%q: RocketMQ takes only a-z A-Z 0-9 _ - %% | in a topic, %q holds something else", name, s, p.text)
		}
		if name == "ROWFERRY_ROUTE_TAG" && tagProblem(p.text) != "" {
			return nil, fmt.Errorf("%s=%q: a tag holds neither blanks nor ||", name, s)
		}
		if problem := valueProblem(p.text); problem != "" {
			return nil, fmt.Errorf("%s=%q: %s", name, s, problem)
		}
	}
	return t, nil
}

func compile(s string, known map[string]variable) (*template, error) {
	t := &template{}
	for rest := s; rest != ""; {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			t.parts = append(t.parts, part{text: rest})
			break
		}
		if open > 0 {
			t.parts = append(t.parts, part{text: rest[:open]})
		}
		end := strings.IndexByte(rest[open:], '}')
		if rest[open] == '}' || end < 0 {
			return nil, fmt.Errorf("braces do not pair")
		}
		p, err := compileVariable(rest[open+1:open+end], known)
		if err != nil {
			return nil, err
		}
		t.parts = append(t.parts, p)
		rest = rest[open+end+1:]
	}
	return t, nil
}

func compileVariable(name string, known map[string]variable) (part, error) {
	look := name
	header, isHeader := strings.CutPrefix(name, "header:")
	if isHeader && header != "" {
		look = "header:NAME"
	}
	v, ok := known[look]
	if !ok {
		return part{}, fmt.Errorf("nothing is called {%s}; known are %s", name, strings.Join(variableNames(known), " "))
	}
	return part{value: v, header: header}, nil
}

// variableNames lists the names in the order of the documentation.
func variableNames(known map[string]variable) []string {
	var names []string
	for _, n := range []string{"table", "schema", "aggregate_type", "event_type", "header:NAME", "aggregate_id", "id"} {
		if known[n] != nil {
			names = append(names, "{"+n+"}")
		}
	}
	return names
}

// expand fills in the values of e, each made safe first unless safe is nil.
func (t *template) expand(e *outbox.Event, safe func(string) string) string {
	if len(t.parts) == 1 {
		return t.parts[0].expand(e, safe)
	}
	var b strings.Builder
	for i := range t.parts {
		b.WriteString(t.parts[i].expand(e, safe))
	}
	return b.String()
}

func (p *part) expand(e *outbox.Event, safe func(string) string) string {
	if p.value == nil {
		return p.text
	}
	v := p.value(e, p.header)
	if safe != nil {
		v = safe(v)
	}
	return v
}
