package router

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// The separators of RocketMQ's property encoding are \x01 and \x02 and nothing
// escapes them: a value `a\x02TRAN_MSG\x01true` arrives as a second property
// that hides the message from every consumer. So control characters are refused,
// and so is text that is not UTF-8. TestRouteRefuses and FuzzRoute show it.

// valueProblem says why s cannot be a property's name or value; empty: it can.
func valueProblem(s string) string {
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c == 0x7f:
			return fmt.Sprintf("control character %#02x at byte %d", c, i)
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	if !ascii && !utf8.ValidString(s) {
		return "not valid UTF-8"
	}
	return ""
}

// checkValue refuses what valueProblem finds; what is named, not quoted.
func checkValue(what, s string) error {
	problem := valueProblem(s)
	switch {
	case problem == "":
		return nil
	case strings.HasPrefix(problem, "control"):
		return refused("control_character", what+": "+problem)
	}
	return refused("invalid_utf8", what+": "+problem)
}

// ourNames are the properties that rowferry itself sets.
var ourNames = set(`outbox_uid outbox_id outbox_table outbox_seq aggregate_id aggregate_type event_type created_at`)

// reservedNames mean something to RocketMQ: TRAN_MSG hides a message, DELAY and
// TIMER_* take it out of order, WAIT waives the flush.
var reservedNames = set(`KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO CHECK_IMMUNITY_TIME_IN_SECONDS
TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME SHARDING_KEY __SHARDINGKEY
PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT __STARTDELIVERTIME
__BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#`)

func set(names string) map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(names) {
		m[n] = true
	}
	return m
}

func reserved(name string) bool {
	return reservedNames[name] || strings.HasPrefix(name, "__RMQ.") || strings.HasPrefix(name, "TIMER_")
}

func checkHeader(h outbox.Header) error {
	switch {
	case h.Name == "":
		return refused("headers_invalid", "a header has no name")
	case ourNames[h.Name]:
		return refused("header_clash", fmt.Sprintf("header %q is the name of a property that rowferry sets", h.Name))
	case reserved(h.Name):
		return refused("header_reserved", fmt.Sprintf("header %q is a name that RocketMQ reserves", h.Name))
	}
	if err := checkValue("the name of a header", h.Name); err != nil {
		return err
	}
	if problem := valueProblem(h.Value); problem != "" {
		return checkValue("header "+h.Name, h.Value)
	}
	return nil
}

func topicByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '_' || c == '-' || c == '%' || c == '|'
}

// topicProblem says why RocketMQ refuses t as a topic; empty: it does not.
func topicProblem(t string) string {
	if t == "" {
		return "the topic is empty"
	}
	if len(t) > TopicBytesMax {
		return fmt.Sprintf("the topic has %d bytes, RocketMQ takes %d", len(t), TopicBytesMax)
	}
	for i := range len(t) {
		if !topicByte(t[i]) {
			return fmt.Sprintf("topic %q holds characters other than a-z A-Z 0-9 _ - %% |", t)
		}
	}
	return ""
}

// topicSafe replaces each character that RocketMQ refuses in a topic by `_`.
func topicSafe(s string) string {
	for i := range len(s) {
		if !topicByte(s[i]) {
			return strings.Map(func(r rune) rune {
				if r < utf8.RuneSelf && topicByte(byte(r)) {
					return r
				}
				return '_'
			}, s)
		}
	}
	return s
}

// tagProblem says why t is not one tag: subscriptions are written `a || b`.
func tagProblem(t string) string {
	if strings.Contains(t, " ") || strings.Contains(t, "||") {
		return "the tag holds a blank or ||"
	}
	return ""
}

func tagSafe(s string) string {
	if tagProblem(s) == "" {
		return s
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "||", "_"), " ", "_")
}

// keySafe replaces blanks, which separate the entries of KEYS.
func keySafe(s string) string { return strings.ReplaceAll(s, " ", "_") }
