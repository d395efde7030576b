import { formatCidr, formatIp } from '../../base/ip.ts'
import {
  BALANCE_ANNOTATION,
  FAIL_OVER_ANNOTATION,
  PASSIVE,
  WEIGHTS_ANNOTATION,
  weightsText,
} from '../../model/balance.ts'
import type { Json } from '../../model/fields.ts'
import { SERVICE_LABEL, TRIGGER_TIME } from '../../model/parse.ts'
import { REMOVAL_TAINT, ZONE_LABEL } from '../../model/parse-node.ts'
import {
  IPVS_SCHEDULER_ANNOTATION,
  PROXY_NAME_LABEL,
  TCP_DRAIN_ANNOTATION,
} from '../../model/parse-service.ts'
import type { EndpointSlice, EndpointTraits, Service } from '../../model/service.ts'
import type { NodeInfo, Snapshot } from '../../model/snapshot.ts'

/**
 * Writes the objects of a Snapshot as a List that `--source=file:` reads. What the parser refused is not in it, nor is
 * what kprobe does not read, such as labels; addresses of interfaces and listeners belong to the machine that reads it.
 */
export function manifestsOf({ node, serviceCidrs, services, sliceByKey }: Snapshot): Json {
  return {
    apiVersion: 'v1',
    kind: 'List',
    items: [
      ...(node === undefined ? [] : [nodeManifest(node)]),
      ...[...serviceCidrs.entries()].map(([name, cidrs]) => ({
        apiVersion: 'networking.k8s.io/v1',
        kind: 'ServiceCIDR',
        metadata: { name },
        spec: { cidrs: cidrs.map(formatCidr) },
      })),
      ...[...services.entries()].map(([, service]) => serviceManifest(service)),
      ...[...sliceByKey.entries()].map(([, slice]) => sliceManifest(slice)),
    ],
  }
}

function nodeManifest({ name, uid, ips, zone, podCidrs, eligible }: NodeInfo): Json {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, uid, ...(zone === '' ? {} : { labels: { [ZONE_LABEL]: zone } }) },
    spec: {
      podCIDRs: podCidrs.map(formatCidr),
      ...(eligible ? {} : { taints: [{ key: REMOVAL_TAINT, effect: 'NoSchedule' }] }),
    },
    status: { addresses: ips.map(ip => ({ type: 'InternalIP', address: formatIp(ip) })) },
  }
}

function serviceManifest(service: Service): Json {
  const { uid, creationTimestamp, type, ports, affinityTimeoutS, healthCheckNodePort } = service
  const clusterIPs = service.clusterIps.map(formatIp)
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { ...identity(service.key), uid, ...optional({ creationTimestamp }), ...settingsOf(service) },
    spec: {
      type,
      ...(clusterIPs.length === 0 ? {} : { clusterIP: clusterIPs[0], clusterIPs }),
      ports: ports.map(({ name, nodePort, ...port }) => ({ ...optional({ name, nodePort }), ...port })),
      externalIPs: service.externalIps.map(formatIp),
      loadBalancerSourceRanges: service.writtenRanges.map(formatCidr),
      internalTrafficPolicy: service.internalTrafficPolicy,
      externalTrafficPolicy: service.externalTrafficPolicy,
      ...(affinityTimeoutS === 0 ? {} : affinity(affinityTimeoutS)),
      ...optional({ healthCheckNodePort }),
    },
    status: { loadBalancer: { ingress: service.loadBalancerIps.map(ip => ({ ip: formatIp(ip) })) } },
  }
}

function affinity(timeoutSeconds: number): Json {
  return { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds } } }
}

function settingsOf({ proxyName, tcpDrainMs, ipvsScheduler, balance, failsOver }: Service): Json {
  const annotations = {
    ...(tcpDrainMs === undefined
      ? {}
      : { [TCP_DRAIN_ANNOTATION]: tcpDrainMs === 0 ? 'cut' : `${tcpDrainMs}ms` }),
    ...(balance?.policy === undefined ? {} : { [BALANCE_ANNOTATION]: balance.policy }),
    ...(balance === undefined || balance.weights.length === 0
      ? {}
      : { [WEIGHTS_ANNOTATION]: weightsText(balance.weights) }),
    ...(failsOver === true ? { [FAIL_OVER_ANNOTATION]: PASSIVE } : {}),
    ...(ipvsScheduler === undefined ? {} : { [IPVS_SCHEDULER_ANNOTATION]: ipvsScheduler }),
  }
  return {
    ...(proxyName === undefined ? {} : { labels: { [PROXY_NAME_LABEL]: proxyName } }),
    ...(Object.keys(annotations).length === 0 ? {} : { annotations }),
  }
}

function sliceManifest(slice: EndpointSlice): Json {
  const { key, service, family, triggerTimeMs, ports, endpoints } = slice
  const namespace = identity(key).namespace ?? ''
  const names = slice.targetNames?.split(',') ?? []
  const uids = slice.targetUids?.split(',') ?? []
  const time = new Date(triggerTimeMs).toISOString()
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      ...identity(key),
      labels: { [SERVICE_LABEL]: identity(service).name },
      ...(triggerTimeMs === 0 ? {} : { annotations: { [TRIGGER_TIME]: time } }),
    },
    addressType: family,
    ports,
    endpoints: endpoints.map(({ ip, traits }, index) => {
      const target = optional({ name: names[index] ?? '', uid: decodeURIComponent(uids[index] ?? '') })
      const isNamed = Object.keys(target).length > 0
      return {
        addresses: [formatIp(ip)],
        ...traitsManifest(traits),
        ...(isNamed ? { targetRef: { kind: 'Pod', namespace, ...target } } : {}),
      }
    }),
  }
}

function traitsManifest({ nodeName, zone = '', conditions, hints }: EndpointTraits): Json {
  const { forZones, forNodes } = hints
  const named = (names: readonly string[]) => names.map(name => ({ name }))
  const hasHints = forZones.length + forNodes.length > 0
  return {
    conditions,
    ...optional({ nodeName, zone }),
    ...(hasHints ? { hints: { forZones: named(forZones), forNodes: named(forNodes) } } : {}),
  }
}

function identity(key: string): { readonly namespace?: string; readonly name: string } {
  const [namespace = '', name] = key.split('/')
  return name === undefined ? { name: namespace } : { namespace, name }
}

/** Leaves out empty texts and zeros, which stand for an absent field. */
function optional(fields: Json): Json {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== '' && value !== 0))
}
