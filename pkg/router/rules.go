package router

import (
	"errors"
	"fmt"
	"strings"
)

// rule is one entry of ROUTE_RULES.
type rule struct {
	pattern string // over the event type, `*` stands for any run of characters
	topic   string
	tag     string // empty: as without the rule
	drop    bool
}

// parseRules reads PATTERN=TOPIC[:TAG],...; its error joins every mistake.
func parseRules(s string) ([]rule, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var rules []rule
	var errs []error
	for entry := range strings.SplitSeq(s, ",") {
		r, err := parseRule(strings.TrimSpace(entry))
		if err != nil {
			errs = append(errs, fmt.Errorf("ROWFERRY_ROUTE_RULES: %q: %w", strings.TrimSpace(entry), err))
		}
		rules = append(rules, r)
	}
	return rules, errors.Join(errs...)
}

func parseRule(entry string) (rule, error) {
	pattern, target, ok := strings.Cut(entry, "=")
	pattern, target = strings.TrimSpace(pattern), strings.TrimSpace(target)
	if !ok || pattern == "" || target == "" {
		return rule{}, errors.New("not of the form PATTERN=TOPIC, PATTERN=TOPIC:TAG or PATTERN=-")
	}
	if target == "-" {
		return rule{pattern: pattern, drop: true}, nil
	}
	topic, tag, hasTag := strings.Cut(target, ":")
	if hasTag && tag == "" {
		return rule{}, errors.New("the tag after the colon is empty")
	}
	if problem := topicProblem(topic); problem != "" {
		return rule{}, errors.New(problem)
	}
	problem := tagProblem(tag)
	if problem == "" {
		problem = valueProblem(tag)
	}
	if problem != "" {
		return rule{}, errors.New(problem)
	}
	return rule{pattern: pattern, topic: topic, tag: tag}, nil
}

// match returns the first rule that covers the event type, or nil.
func (r *Router) match(eventType string) *rule {
	for i := range r.rules {
		if glob(r.rules[i].pattern, eventType) {
			return &r.rules[i]
		}
	}
	return nil
}

// glob reports whether pattern covers the whole of s. It takes the shortest run
// for each star and goes back only to the last one, so it is never exponential.
func glob(pattern, s string) bool {
	p, i := 0, 0
	star, resume := -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p, i = p+1, i+1
		case star >= 0:
			resume++
			p, i = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
