package config

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Effective is one variable as it is in force. Secrets are hidden in Value.
type Effective struct {
	Name   string `json:"name"` // with the prefix
	Value  string `json:"value"`
	Origin Origin `json:"origin"`
}

// Effective returns every variable in the order of the reference page.
func (c *Config) Effective() []Effective {
	all := make([]Effective, len(settings))
	for i, s := range settings {
		all[i] = Effective{Prefix + s.name, c.text(s), c.Origin(s.name)}
	}
	return all
}

// text writes a value as it would be configured.
func (c *Config) text(s setting) string {
	return fmt.Sprint(reflect.ValueOf(c).Elem().Field(s.index).Interface())
}

// PrintTable writes the effective configuration for people.
func (c *Config) PrintTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tVALUE\tORIGIN") //nolint:errcheck // Flush reports it
	for _, e := range c.Effective() {
		value := e.Value
		if value == "" {
			value = "(" + byName[strings.TrimPrefix(e.Name, Prefix)].shown + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", e.Name, value, e.Origin) //nolint:errcheck // Flush reports it
	}
	return t.Flush()
}

// PrintJSON writes the effective configuration as one JSON document.
func (c *Config) PrintJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(map[string]any{"settings": c.Effective()})
}
