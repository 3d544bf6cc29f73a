package testservers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestDisturbedSendsMeetTheirFate(t *testing.T) {
	t.Parallel()
	b := testservers.SharedRocketMQ(t)
	topic := b.Topic(t, 1)
	release := make(chan struct{})
	fates := map[string]testservers.Fate{"busy": {Busy: true}, "lost": {Lost: true}, "late": {After: release}, "never": {After: make(chan struct{})}}
	order := []string{"first", "busy", "lost", "late", "never", "last"}
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{b.Disturbed(t, func(n int) testservers.Fate { return fates[order[n]] })}),
		producer.WithInstanceName(topic), producer.WithRetry(0), producer.WithSendMsgTimeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Shutdown() })
	for _, body := range order {
		err := send(p, topic, body)
		if _, bad := fates[body]; bad != (err != nil) {
			t.Errorf("sending %q gives %v", body, err)
		}
		if body == "busy" && !strings.HasPrefix(err.Error(), "CODE: 2,") {
			t.Errorf("a busy broker is seen as %v", err)
		}
	}
	close(release)
	var got []string
	for _, m := range b.Await(t, topic, 4, 30*time.Second) {
		got = append(got, string(m.Body))
	}
	if text := strings.Join(got, " "); text != "first lost last late" {
		t.Errorf("stored: %s", text)
	}
}
