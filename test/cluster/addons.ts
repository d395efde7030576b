import type { NodePlan, Site } from './site.ts'

/** See images.mjs. */
const COREDNS_IMAGE = 'kprobe.example/coredns:test'
const NAMESPACE = 'kube-system'
const LABELS = { 'k8s-app': 'kube-dns' }
const RBAC = 'rbac.authorization.k8s.io'
const COREFILE = `.:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    cache 30
    reload
    loadbalance
}
`

/** The Node objects, before a kubelet takes them: zones and the addresses of pods come from outside in every cluster. */
export function nodeObject({ name, zone, podCidrs }: NodePlan): object {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      labels: { 'topology.kubernetes.io/zone': zone, 'topology.kubernetes.io/region': 'test' },
    },
    spec: { podCIDR: podCidrs[0], podCIDRs: podCidrs },
  }
}

/** The cluster's DNS: two replicas of CoreDNS behind the Service kube-dns. */
export function dnsObjects(site: Site): readonly object[] {
  const role = { apiGroup: RBAC, kind: 'ClusterRole', name: 'system:coredns' }
  const own = (name: string) => ({ name, namespace: NAMESPACE, labels: LABELS })
  return [
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata: own('coredns') },
    {
      apiVersion: `${RBAC}/v1`,
      kind: 'ClusterRole',
      metadata: { name: role.name },
      rules: [
        { apiGroups: [''], resources: ['services', 'pods', 'namespaces'], verbs: ['list', 'watch'] },
        { apiGroups: ['discovery.k8s.io'], resources: ['endpointslices'], verbs: ['list', 'watch'] },
      ],
    },
    {
      apiVersion: `${RBAC}/v1`,
      kind: 'ClusterRoleBinding',
      metadata: { name: role.name },
      roleRef: role,
      subjects: [{ kind: 'ServiceAccount', name: 'coredns', namespace: NAMESPACE }],
    },
    { apiVersion: 'v1', kind: 'ConfigMap', metadata: own('coredns'), data: { Corefile: COREFILE } },
    {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: own('coredns'),
      spec: { replicas: 2, selector: { matchLabels: LABELS }, template: dnsPod() },
    },
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: {
        ...own('kube-dns'),
        labels: { ...LABELS, 'kubernetes.io/cluster-service': 'true', 'kubernetes.io/name': 'CoreDNS' },
      },
      spec: {
        clusterIP: site.subnets[0]?.dns,
        selector: LABELS,
        ports: [
          { name: 'dns', port: 53, protocol: 'UDP' },
          { name: 'dns-tcp', port: 53, protocol: 'TCP' },
        ],
      },
    },
  ]
}

function dnsPod(): object {
  return {
    metadata: { labels: LABELS },
    spec: {
      serviceAccountName: 'coredns',
      priorityClassName: 'system-cluster-critical',
      dnsPolicy: 'Default',
      topologySpreadConstraints: [
        {
          maxSkew: 1,
          topologyKey: 'kubernetes.io/hostname',
          whenUnsatisfiable: 'ScheduleAnyway',
          labelSelector: { matchLabels: LABELS },
        },
      ],
      containers: [
        {
          name: 'coredns',
          image: COREDNS_IMAGE,
          imagePullPolicy: 'Never',
          args: ['-conf', '/etc/coredns/Corefile'],
          ports: [
            { containerPort: 53, name: 'dns', protocol: 'UDP' },
            { containerPort: 53, name: 'dns-tcp', protocol: 'TCP' },
          ],
          // As kubeadm's: without it, a busy machine lets it wait for seconds.
          resources: { requests: { cpu: '100m', memory: '70Mi' } },
          readinessProbe: { httpGet: { path: '/ready', port: 8181 }, periodSeconds: 2 },
          volumeMounts: [{ name: 'config', mountPath: '/etc/coredns' }],
        },
      ],
      volumes: [{ name: 'config', configMap: { name: 'coredns' } }],
    },
  }
}
