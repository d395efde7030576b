/** Fields below a field. `true`: anything may stand there, a scalar or a mapping with free keys. */
export interface ApiFields {
  readonly [name: string]: ApiFields | true
}

/** A kind that is read from files. */
interface ApiKindFields {
  readonly apiVersion: string
  readonly fields: ApiFields
}

const METADATA: ApiFields = {
  ...all('name generateName namespace selfLink uid resourceVersion generation creationTimestamp'),
  ...all('deletionTimestamp deletionGracePeriodSeconds labels annotations finalizers'),
  ownerReferences: all('apiVersion kind name uid controller blockOwnerDeletion'),
  managedFields: all('manager operation apiVersion time fieldsType fieldsV1 subresource'),
}

const CONDITIONS = all('type status observedGeneration lastTransitionTime reason message')
const TYPE = all('apiVersion kind')
const CONFIG_SOURCE: ApiFields = { configMap: all('namespace name uid resourceVersion kubeletConfigKey') }

/** Every field of the kinds that are read, as of Kubernetes 1.36 (core/v1, discovery/v1, networking/v1). */
export const API_FIELDS: Readonly<Record<string, ApiKindFields>> = {
  Service: {
    apiVersion: 'v1',
    fields: {
      ...TYPE,
      metadata: METADATA,
      spec: {
        ...all('selector clusterIP clusterIPs type externalIPs sessionAffinity loadBalancerIP'),
        ...all('loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort'),
        ...all('publishNotReadyAddresses ipFamilies ipFamilyPolicy allocateLoadBalancerNodePorts'),
        ...all('loadBalancerClass internalTrafficPolicy trafficDistribution'),
        ports: all('name protocol appProtocol port targetPort nodePort'),
        sessionAffinityConfig: { clientIP: all('timeoutSeconds') },
      },
      status: {
        loadBalancer: { ingress: { ...all('ip hostname ipMode'), ports: all('port protocol error') } },
        conditions: CONDITIONS,
      },
    },
  },
  EndpointSlice: {
    apiVersion: 'discovery.k8s.io/v1',
    fields: {
      ...TYPE,
      metadata: METADATA,
      addressType: true,
      endpoints: {
        ...all('addresses hostname deprecatedTopology nodeName zone'),
        conditions: all('ready serving terminating'),
        targetRef: all('kind namespace name uid apiVersion resourceVersion fieldPath'),
        hints: { forZones: all('name'), forNodes: all('name') },
      },
      ports: all('name protocol port appProtocol'),
    },
  },
  Node: {
    apiVersion: 'v1',
    fields: {
      ...TYPE,
      metadata: METADATA,
      spec: {
        ...all('podCIDR podCIDRs providerID unschedulable externalID'),
        taints: all('key value effect timeAdded'),
        configSource: CONFIG_SOURCE,
      },
      status: {
        ...all('capacity allocatable phase volumesInUse declaredFeatures'),
        conditions: all('type status lastHeartbeatTime lastTransitionTime reason message'),
        addresses: all('type address'),
        daemonEndpoints: { kubeletEndpoint: all('Port') },
        nodeInfo: {
          ...all('machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion kubeletVersion'),
          ...all('kubeProxyVersion operatingSystem architecture'),
          swap: all('capacity'),
        },
        images: all('names sizeBytes'),
        volumesAttached: all('name devicePath'),
        config: {
          assigned: CONFIG_SOURCE,
          active: CONFIG_SOURCE,
          lastKnownGood: CONFIG_SOURCE,
          error: true,
        },
        runtimeHandlers: { name: true, features: all('recursiveReadOnlyMounts userNamespaces') },
        features: all('supplementalGroupsPolicy'),
      },
    },
  },
  ServiceCIDR: {
    apiVersion: 'networking.k8s.io/v1',
    fields: { ...TYPE, metadata: METADATA, spec: all('cidrs'), status: { conditions: CONDITIONS } },
  },
}

/** A list as `kubectl get -o yaml` prints it. */
export const LIST_FIELDS: ApiFields = { ...TYPE, metadata: true, items: true }

function all(names: string): ApiFields {
  return Object.fromEntries(names.split(' ').map(name => [name, true]))
}
