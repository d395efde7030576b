/** Synthetic clusters: plain Kubernetes objects, the same for the same numbers. */
export interface ClusterSize {
  readonly services: number
  readonly endpoints: number
}

export function* clusterObjects(size: ClusterSize): IterableIterator<object> {
  for (let service = 0; service < size.services; service++) {
    yield serviceObject(service)
    yield sliceObject(service, size.endpoints)
  }
}

/** Service addresses run on from 10.96.0.0. */
export function serviceObject(index: number): object {
  const ip = `10.${96 + (index >> 16)}.${(index >> 8) & 255}.${index & 255}`
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: `ns-${index % 50}`,
      name: `service-${index}`,
      uid: `uid-${index}`,
      resourceVersion: String(index),
    },
    spec: {
      type: 'ClusterIP',
      clusterIP: ip,
      clusterIPs: [ip],
      ipFamilies: ['IPv4'],
      selector: { app: `service-${index}` },
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
      sessionAffinity: 'None',
      internalTrafficPolicy: 'Cluster',
    },
  }
}

export function sliceObject(index: number, endpoints: number, from = 0): object {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: `ns-${index % 50}`,
      name: `service-${index}-abcde`,
      uid: `slice-uid-${index}`,
      labels: {
        'kubernetes.io/service-name': `service-${index}`,
        'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io',
      },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from({ length: endpoints }, (_, slot) =>
      endpointObject(index * endpoints + slot + from),
    ),
  }
}

/** Pods live in 10.128.0.0/9, 250 to a node. */
function endpointObject(pod: number): object {
  return {
    addresses: [`10.${128 + ((pod >> 16) & 127)}.${(pod >> 8) & 255}.${pod & 255}`],
    conditions: { ready: true, serving: true, terminating: false },
    nodeName: `node-${Math.floor(pod / 250)}`,
    targetRef: { kind: 'Pod', namespace: 'ns', name: `pod-${pod}`, uid: `pod-uid-${pod}` },
    zone: `zone-${pod % 3}`,
  }
}
