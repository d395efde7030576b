// Clients of Typha, many in a process, as Felix is one: typha-readers ADDRESS COUNT. It writes `synced` once each client has
// the whole state. For each number N on standard input it writes `done` once the clients have had N updates of EndpointSlices.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/projectcalico/calico/libcalico-go/lib/backend/api"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/model"
	"github.com/projectcalico/calico/typha/pkg/discovery"
	"github.com/projectcalico/calico/typha/pkg/syncclient"
	"github.com/projectcalico/calico/typha/pkg/syncproto"
	"github.com/sirupsen/logrus"
)

type reader struct {
	synced  *sync.WaitGroup
	updates *atomic.Int64
	once    sync.Once
}

func (r *reader) OnStatusUpdated(status api.SyncStatus) {
	if status == api.InSync {
		r.once.Do(r.synced.Done)
	}
}

func (r *reader) OnUpdates(updates []api.Update) {
	for _, update := range updates {
		key, isResource := update.Key.(model.ResourceKey)
		if isResource && key.Kind == model.KindKubernetesEndpointSlice {
			r.updates.Add(1)
		}
	}
}

func main() {
	logrus.SetLevel(logrus.ErrorLevel)
	count, err := strconv.Atoi(os.Args[2])
	if err != nil {
		logrus.Fatal(err)
	}
	var synced sync.WaitGroup
	var updates atomic.Int64
	synced.Add(count)
	for index := range count {
		discoverer := discovery.New(discovery.WithAddrOverride(os.Args[1]))
		name := fmt.Sprintf("node-%d", index)
		options := &syncclient.Options{SyncerType: syncproto.SyncerTypeFelix}
		callbacks := &reader{synced: &synced, updates: &updates}
		client := syncclient.New(discoverer, "bench", name, "bench", callbacks, options)
		if err := client.Start(context.Background()); err != nil {
			logrus.Fatal(err)
		}
	}
	synced.Wait()
	updates.Store(0)
	fmt.Println("synced")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		expected, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			logrus.Fatal(err)
		}
		for updates.Load() < expected {
			time.Sleep(20 * time.Millisecond)
		}
		updates.Add(-expected)
		fmt.Println("done")
	}
}
