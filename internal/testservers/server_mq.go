package testservers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// systemTopic exists on every broker.
const systemTopic = "SELF_TEST_TOPIC"

// NameServer is what it takes to start a RocketMQ name server.
type NameServer struct {
	Dir  string
	Port int // on 127.0.0.1
}

// Addr is the name server's ip:port.
func (s NameServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Launch starts the name server. It does not wait; see Await.
func (s NameServer) Launch(l Launcher) (*Process, error) {
	conf := "listenPort=" + strconv.Itoa(s.Port) + "\n"
	return launchJava(l, "namesrv", s.Dir, "namesrv.properties", conf)
}

// Await waits until the name server answers.
func (s NameServer) Await(p *Process) error {
	return p.await("the name server", func() error {
		_, err := brokerAddrs(s.Addr(), systemTopic)
		if isCode(err, responseTopicMissing) {
			return nil // it answers; no broker has come yet
		}
		return err
	})
}

// BrokerServer is what it takes to start a RocketMQ broker.
type BrokerServer struct {
	Dir        string
	Port       int      // on 127.0.0.1; the broker also takes Port-2 and Port+1
	NameServer string   // ip:port
	Conf       []string // further lines "key=value" of broker.conf; the last of equal ones holds

	// Advertised is the IP that clients are told, for something that stands between them
	// and the broker and listens there on the same port. Empty: the broker's own.
	Advertised string
}

// BrokerPortSpan is what FreePort needs to know for a broker's port.
const BrokerPortSpan = 2

// Addr is the broker's ip:port.
func (s BrokerServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

func (s BrokerServer) advertised() string {
	if s.Advertised == "" {
		return "127.0.0.1"
	}
	return s.Advertised
}

// Launch starts the broker. It does not wait; see Await.
func (s BrokerServer) Launch(l Launcher) (*Process, error) {
	return launchJava(l, "broker", s.Dir, "broker.conf", s.conf())
}

// conf is the broker's configuration. The files are small ones for quick creation, the
// disk threshold is out of the way of full development machines, and the broker tells
// the name server of itself as often as it can (every 10 s). The timer wheel, which only
// messages with a delivery time of their own need, would keep most of a core busy even in
// an idle broker; delay levels work without it.
func (s BrokerServer) conf() string {
	store := filepath.Join(s.Dir, "store")
	lines := append([]string{
		"brokerClusterName=testcluster", "brokerName=testbroker", "brokerId=0",
		"brokerIP1=" + s.advertised(), "bindAddress=127.0.0.1", "listenPort=" + strconv.Itoa(s.Port),
		"namesrvAddr=" + s.NameServer, "registerNameServerPeriod=10000",
		"autoCreateTopicEnable=false",
		"storePathRootDir=" + store, "storePathCommitLog=" + filepath.Join(store, "commitlog"),
		"mappedFileSizeCommitLog=" + strconv.Itoa(64<<20), "maxIndexNum=200000", "maxHashSlotNum=50000",
		"diskMaxUsedSpaceRatio=99", "transientStorePoolEnable=false",
		// On a busy machine a send waits longer than the 200 ms after which a broker
		// says that it is busy; tests of that answer set their own limit.
		"waitTimeMillsInSendQueue=5000", "osPageCacheBusyTimeOutMills=5000",
		"timerWheelEnable=false", "reviveQueueNum=1",
	}, s.Conf...)
	return strings.Join(lines, "\n") + "\n" // Java's properties: the last of equal keys holds
}

// Await waits until the broker is known to its name server, so that clients find it.
func (s BrokerServer) Await(p *Process) error {
	return p.await("the broker", func() error {
		addrs, err := brokerAddrs(s.NameServer, systemTopic)
		if err == nil && !slices.Contains(addrs, s.advertised()+":"+strconv.Itoa(s.Port)) {
			err = errors.New("the name server does not know the broker")
		}
		if err != nil {
			return err
		}
		// After a restart the name server may still hold the old registration.
		return s.Answers()
	})
}

// Answers returns nil when the broker answers requests, whether or not its name server
// knows it.
func (s BrokerServer) Answers() error {
	_, err := callOnce(s.Addr(), codeRuntimeInfo, nil, nil)
	return err
}

// Register makes the broker tell its name server of itself at once, as a name server
// that has restarted would otherwise learn of it up to 10 s later.
func (s BrokerServer) Register() error {
	// Setting the permission, even to what it was, has that effect.
	_, err := callOnce(s.Addr(), codeUpdateConfig, nil, []byte("brokerPermission=6\n"))
	return err
}

// launchJava starts one of the RocketMQ servers with a configuration file.
func launchJava(l Launcher, name, dir, confName, conf string) (*Process, error) {
	if err := provision("rocketmq"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the %s: %w", name, err)
	}
	confFile := filepath.Join(dir, confName)
	if err := os.WriteFile(confFile, []byte(conf), 0o644); err != nil {
		return nil, fmt.Errorf("writing the configuration of the %s: %w", name, err)
	}
	cmd := exec.Command(program("rocketmq", name), "-c", confFile)
	cmd.Env = append(os.Environ(), "ROCKETMQ_HOME="+dir)
	return l.Start(dir, cmd)
}

// route is the part of a name server's answer that tests need.
type route struct {
	BrokerDatas []struct {
		BrokerAddrs map[string]string `json:"brokerAddrs"` // by broker id; "0" is the master
	} `json:"brokerDatas"`
	QueueDatas []struct {
		WriteQueueNums int `json:"writeQueueNums"`
	} `json:"queueDatas"`
}

func lookUpRoute(nameServer, topic string) (route, error) {
	var r route
	body, err := callOnce(nameServer, codeRoute, map[string]string{
		"topic": topic, "acceptStandardJsonOnly": "true",
	}, nil)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("reading the route of topic %s: %w", topic, err)
	}
	return r, nil
}

// brokerAddrs are the master brokers that hold a topic.
func brokerAddrs(nameServer, topic string) ([]string, error) {
	r, err := lookUpRoute(nameServer, topic)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, broker := range r.BrokerDatas {
		if addr := broker.BrokerAddrs["0"]; addr != "" {
			found[addr] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
