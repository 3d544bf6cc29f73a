package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// routeNames are what may stand in braces; {header:NAME} is looked at by itself.
var routeNames = []string{"table", "schema", "aggregate_type", "event_type"}

func (c *Config) checkTemplates(add adder) {
	for _, t := range []struct {
		name, text string
		more       []string
	}{
		{"ROUTE_TOPIC", c.RouteTopic, nil},
		{"ROUTE_TAG", c.RouteTag, nil},
		{"ROUTE_KEY", c.RouteKey, []string{"aggregate_id"}},
	} {
		if err := checkTemplate(t.text, append(t.more, routeNames...)); err != nil {
			add("%s%s=%q: %w", Prefix, t.name, t.text, err)
		}
	}
	for _, rule := range c.RouteRules {
		if pattern, target, ok := strings.Cut(rule, "="); !ok || pattern == "" || target == "" || strings.HasPrefix(target, ":") {
			add("%sROUTE_RULES: %q is not of the form PATTERN=TOPIC[:TAG] or PATTERN=-", Prefix, rule)
		}
	}
}

// checkTemplate checks the braces of a template and the names between them.
func checkTemplate(text string, names []string) error {
	for rest := text; ; {
		before, inside, opened := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return errors.New("a } without its {")
		}
		if !opened {
			return nil
		}
		name, after, closed := strings.Cut(inside, "}")
		if !closed {
			return errors.New("a { without its }")
		}
		if err := checkPlaceholder(name, names); err != nil {
			return err
		}
		rest = after
	}
}

func checkPlaceholder(name string, names []string) error {
	if header, ok := strings.CutPrefix(name, "header:"); ok && header != "" {
		return nil
	}
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("{%s} is unknown; wanted {%s} or {header:NAME}", name, strings.Join(names, "} {"))
}
