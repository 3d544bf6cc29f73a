package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// directory asks the name servers where topics and brokers are.
type directory struct {
	remoting
	servers []string
}

// route is what name servers say about a topic.
type route struct {
	Queues  []routeQueues `json:"queueDatas"`
	Brokers []brokerData  `json:"brokerDatas"`
}

type routeQueues struct {
	Broker string `json:"brokerName"`
	Write  int    `json:"writeQueueNums"`
	Perm   int    `json:"perm"`
}

type brokerData struct {
	Name  string            `json:"brokerName"`
	Addrs map[string]string `json:"brokerAddrs"` // by broker id; "0" is the master
}

func (q routeQueues) writable() bool { return q.Perm&2 != 0 && q.Write > 0 }

// master returns the address of a broker's master, empty if the route has none.
func (r *route) master(broker string) string {
	for _, b := range r.Brokers {
		if b.Name == broker {
			return b.Addrs["0"]
		}
	}
	return ""
}

// ask puts the question to the name servers in turn until one answers.
func (d *directory) ask(ctx context.Context, code int, fields map[string]string) (*reply, error) {
	var errs []error
	for _, server := range d.servers {
		answer, err := d.call(ctx, server, code, fields)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, err)
	}
	return nil, &outbox.SendError{Class: outbox.Transient, Reason: "nameserver_unreachable", Err: errors.Join(errs...),
		Hint: "no name server of ROWFERRY_ROCKETMQ_NAMESRV answers; look at the address, the network and ROWFERRY_ROCKETMQ_TLS"}
}

// errTopicMissing is the cause inside a topic_missing error.
var errTopicMissing = errors.New("the name servers know no such topic")

// topicMissing is the error for a topic that must be created by the operator.
func topicMissing(topic string) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Configuration, Reason: "topic_missing",
		Err: fmt.Errorf("topic %s: %w", topic, errTopicMissing),
		Hint: "create topic " + topic + " (mqadmin updateTopic -n NAMESRV -c CLUSTER -t " + topic +
			" -r 8 -w 8), or set ROWFERRY_ROCKETMQ_CREATE_TOPICS=true"}
}

// route looks a topic up. A topic that no name server knows is a Configuration
// error, unless they know no broker at all: then it is the brokers that are away.
func (d *directory) route(ctx context.Context, topic string) (*route, error) {
	answer, err := d.ask(ctx, reqRoute, map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"})
	if err != nil {
		return nil, err
	}
	switch answer.Code {
	case codeSuccess:
		r := &route{}
		if err := json.Unmarshal(quoteNames(answer.body), r); err != nil {
			return nil, unexpected("the route of topic "+topic, err)
		}
		return r, nil
	case codeTopicAbsent:
		masters, err := d.masters(ctx)
		if err != nil {
			return nil, err
		}
		if len(masters) == 0 {
			return nil, noBroker(topic)
		}
		return nil, topicMissing(topic)
	}
	return nil, noMessage(classifyCode(answer.Code, answer.Remark, 0))
}

func noBroker(topic string) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Transient, Reason: "broker_unreachable",
		Err:  fmt.Errorf("topic %s: the name servers know no broker", topic),
		Hint: "a broker registers within 30 s of its start; if none comes, compare its namesrvAddr with ROWFERRY_ROCKETMQ_NAMESRV"}
}

func unexpected(what string, err error) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Transient, Reason: "nameserver_answer", Err: fmt.Errorf("reading %s: %w", what, err)}
}

// masters returns the address of every registered master by broker name.
func (d *directory) masters(ctx context.Context) (map[string]string, error) {
	answer, err := d.ask(ctx, reqClusterInfo, nil)
	if err != nil {
		return nil, err
	}
	if answer.Code != codeSuccess {
		return nil, noMessage(classifyCode(answer.Code, answer.Remark, 0))
	}
	var info struct {
		Brokers map[string]brokerData `json:"brokerAddrTable"`
	}
	if err := json.Unmarshal(quoteNames(answer.body), &info); err != nil {
		return nil, unexpected("the list of brokers", err)
	}
	masters := map[string]string{}
	for name, b := range info.Brokers {
		if addr := b.Addrs["0"]; addr != "" {
			masters[name] = addr
		}
	}
	return masters, nil
}

// create makes the topic on every master, with n queues on each.
func (d *directory) create(ctx context.Context, topic string, n int) error {
	masters, err := d.masters(ctx)
	if err != nil {
		return err
	}
	if len(masters) == 0 {
		return noBroker(topic)
	}
	queues := strconv.Itoa(n)
	fields := map[string]string{
		"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6",
		"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "", "force": "false",
	}
	for _, name := range slices.Sorted(maps.Keys(masters)) {
		answer, err := d.call(ctx, masters[name], reqCreateTopic, fields)
		if err != nil {
			return &outbox.SendError{Class: outbox.Transient, Reason: "broker_unreachable",
				Err: fmt.Errorf("creating topic %s on broker %s: %w", topic, name, err)}
		}
		if answer.Code != codeSuccess {
			return &outbox.SendError{Class: outbox.Configuration, Reason: "topic_not_created",
				Err: fmt.Errorf("creating topic %s on broker %s: code %d: %s", topic, name, answer.Code, answer.Remark)}
		}
	}
	return nil
}
