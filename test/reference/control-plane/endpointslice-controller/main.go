// Command endpointslice-controller is the one controller of kube-controller-manager that these tests need, with its defaults.
package main

import (
	"context"
	"os"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

const (
	workers              = 5
	endpointsPerSliceMax = 100
	updatesBatchPeriod   = 0 * time.Second
	noResync             = 0 * time.Second
)

// Takes the path of a kubeconfig, and runs until it is killed.
func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		klog.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	shared := informers.NewSharedInformerFactory(client, noResync)
	core := shared.Core().V1()
	ctx := context.Background()
	controller := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		shared.Discovery().V1().EndpointSlices(), endpointsPerSliceMax, client, updatesBatchPeriod)
	shared.Start(ctx.Done())
	controller.Run(ctx, workers)
}
