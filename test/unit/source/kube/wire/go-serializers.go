// Prints go-serializers.json, what Go's own serializers write of a few objects:
//
//	go mod init samples && go get k8s.io/api@v0.36.3 k8s.io/apimachinery@v0.36.3 && go run .
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func p[T any](v T) *T { return &v }

type out struct {
	Name     string          `json:"name"`
	Protobuf string          `json:"protobuf"`
	Json     json.RawMessage `json:"json"`
}

func meta(ns, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: ns, UID: types.UID("6f1e1b5e-0000-4000-8000-00000000000a"), ResourceVersion: "4711",
		Generation: 3, CreationTimestamp: metav1.Time{Time: time.Date(2026, 2, 3, 4, 5, 6, 700, time.UTC)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "o", UID: "u", Controller: p(true), BlockOwnerDeletion: p(false)}},
		Finalizers:      []string{"a.example/f"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", Time: &metav1.Time{Time: time.Unix(1700000000, 0)},
			FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}, Subresource: "status"}}}
}

func main() {
	scheme := runtime.NewScheme()
	for _, f := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := f(scheme); err != nil {
			panic(err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	var pb, js runtime.SerializerInfo
	for _, i := range codecs.SupportedMediaTypes() {
		if i.MediaType == runtime.ContentTypeProtobuf {
			pb = i
		}
		if i.MediaType == runtime.ContentTypeJSON {
			js = i
		}
	}
	gvs := schema.GroupVersions{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion}
	pe := codecs.EncoderForVersion(pb.Serializer, gvs)
	je := codecs.EncoderForVersion(js.Serializer, gvs)
	enc := func(e runtime.Encoder, o runtime.Object) []byte {
		var b bytes.Buffer
		if err := e.Encode(o, &b); err != nil {
			panic(err)
		}
		return b.Bytes()
	}
	svc := corev1.Service{ObjectMeta: meta("ns1", "web")}
	svc.Labels = map[string]string{"app": "web", "service.kubernetes.io/service-proxy-name": "other"}
	svc.Annotations = map[string]string{"kprobe.io/tcp-drain": "30s", "note": "ä€😀"}
	svc.Spec = corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080, AppProtocol: p("h2c")},
			{Name: "dns", Protocol: "UDP", Port: 53, TargetPort: intstr.FromString("dns")}},
		Selector: map[string]string{"app": "web", "tier": "x"}, ClusterIP: "172.30.0.7", ClusterIPs: []string{"172.30.0.7", "fd00:10:96::7"}, Type: "LoadBalancer",
		ExternalIPs: []string{"192.0.2.9"}, SessionAffinity: "ClientIP", LoadBalancerIP: "192.0.2.77", LoadBalancerSourceRanges: []string{"10.0.0.0/8"},
		ExternalTrafficPolicy: "Local", HealthCheckNodePort: 31000, PublishNotReadyAddresses: true,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: p(int32(600))}},
		IPFamilies:            []corev1.IPFamily{"IPv4", "IPv6"}, IPFamilyPolicy: p(corev1.IPFamilyPolicyPreferDualStack), AllocateLoadBalancerNodePorts: p(true),
		LoadBalancerClass: p("lb.example/x"), InternalTrafficPolicy: p(corev1.ServiceInternalTrafficPolicyLocal), TrafficDistribution: p("PreferClose")}
	svc.Status = corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
		{IP: "192.0.2.50", IPMode: p(corev1.LoadBalancerIPModeVIP), Ports: []corev1.PortStatus{{Port: 80, Protocol: "TCP", Error: p("e")}}}, {Hostname: "lb.example"}}},
		Conditions: []metav1.Condition{{Type: "T", Status: "True", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1700000000, 0), Reason: "R", Message: "M"}}}
	bare := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "ns1"}}
	slice := discoveryv1.EndpointSlice{ObjectMeta: meta("ns1", "web-abcde"), AddressType: "IPv4",
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: p(true), Serving: p(true), Terminating: p(false)},
			Hostname: p("h"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns1", Name: "web-1", UID: "pod-uid-1", ResourceVersion: "9"},
			DeprecatedTopology: map[string]string{"k": "v"}, NodeName: p("node-1"), Zone: p("zone-a"),
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}, {Name: "zone-b"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-1"}}}},
			{Addresses: []string{"10.1.2.4", "10.1.2.5"}}},
		Ports: []discoveryv1.EndpointPort{{Name: p("http"), Protocol: p(corev1.ProtocolTCP), Port: p(int32(8080)), AppProtocol: p("h2c")}, {Name: p("")}, {}}}
	slice.Labels = map[string]string{"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
	slice.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-02-03T04:05:06Z"}
	node := corev1.Node{ObjectMeta: meta("", "node-1")}
	node.DeletionTimestamp = &metav1.Time{Time: time.Unix(1700000100, 0)}
	node.DeletionGracePeriodSeconds = p(int64(30))
	node.Labels = map[string]string{"topology.kubernetes.io/zone": "zone-a", "kubernetes.io/hostname": "node-1"}
	node.Spec = corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}, ProviderID: "x://1", Unschedulable: true,
		Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: "NoSchedule", TimeAdded: &metav1.Time{Time: time.Unix(1700000000, 0)}}}}
	node.Status = corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi")},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1900m")}, Phase: "Running",
		Conditions:      []corev1.NodeCondition{{Type: "Ready", Status: "True", LastHeartbeatTime: metav1.Unix(1700000000, 0), LastTransitionTime: metav1.Unix(1600000000, 0), Reason: "R", Message: "M"}},
		Addresses:       []corev1.NodeAddress{{Type: "InternalIP", Address: "192.168.0.1"}, {Type: "Hostname", Address: "node-1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		NodeInfo:        corev1.NodeSystemInfo{MachineID: "m", SystemUUID: "s", BootID: "b", KernelVersion: "6.1", OSImage: "o", ContainerRuntimeVersion: "c", KubeletVersion: "v1.36.3", KubeProxyVersion: "", OperatingSystem: "linux", Architecture: "amd64"},
		Images:          []corev1.ContainerImage{{Names: []string{"a", "b"}, SizeBytes: 5_000_000_000}}}
	cidr := networkingv1.ServiceCIDR{ObjectMeta: meta("", "kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.30.0.0/16", "fd00:10:96::/112"}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Unix(1700000000, 0)}}}}
	lm := metav1.ListMeta{ResourceVersion: "123456789012345678", Continue: "ab/c=", RemainingItemCount: p(int64(7))}
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: "Timeout: Too large resource version: 9, current: 1", Reason: "Timeout", Code: 504,
		Details: &metav1.StatusDetails{Name: "n", Group: "g", Kind: "services", UID: "u", Causes: []metav1.StatusCause{{Type: "ResourceVersionTooLarge", Message: "Too large resource version", Field: "f"}}, RetryAfterSeconds: 1}}
	objects := []struct {
		n string
		o runtime.Object
	}{
		{"ServiceList", &corev1.ServiceList{ListMeta: lm, Items: []corev1.Service{svc, bare}}},
		{"EndpointSliceList", &discoveryv1.EndpointSliceList{ListMeta: lm, Items: []discoveryv1.EndpointSlice{slice}}},
		{"NodeList", &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: []corev1.Node{node}}},
		{"ServiceCIDRList", &networkingv1.ServiceCIDRList{ListMeta: lm, Items: []networkingv1.ServiceCIDR{cidr}}},
		{"empty ServiceList", &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}},
		{"Status", &status},
		{"Service", &svc},
	}
	var all []out
	for _, x := range objects {
		all = append(all, out{x.n, base64.StdEncoding.EncodeToString(enc(pe, x.o)), bytes.TrimSpace(enc(je, x.o))})
	}
	// A watch as the server writes it: framer, stream serializer, embedded encoder.
	bookmark := corev1.Service{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99", Annotations: map[string]string{"k8s.io/initial-events-end": "true"}}}
	events := []struct {
		t string
		o runtime.Object
	}{{"ADDED", &svc}, {"BOOKMARK", &bookmark}, {"DELETED", &bare}, {"ERROR", &status}}
	var pw bytes.Buffer
	var lines []json.RawMessage
	framer := pb.StreamSerializer.Framer.NewFrameWriter(&pw)
	for _, e := range events {
		ev := metav1.WatchEvent{Type: e.t, Object: runtime.RawExtension{Raw: enc(pe, e.o)}}
		if err := pb.StreamSerializer.Serializer.Encode(&ev, framer); err != nil {
			panic(err)
		}
		jv := metav1.WatchEvent{Type: e.t, Object: runtime.RawExtension{Raw: bytes.TrimSpace(enc(je, e.o))}}
		lines = append(lines, bytes.TrimSpace(enc(js.StreamSerializer.Serializer, &jv)))
	}
	b, _ := json.Marshal(lines)
	all = append(all, out{"watch", base64.StdEncoding.EncodeToString(pw.Bytes()), b})
	r, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stdout, string(r))
}
