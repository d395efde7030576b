import { nearest } from '../../base/text.ts'
import { isJson, type Json, objectText, plainText, printable } from '../../model/fields.ts'
import { watchedIdentity } from '../../model/parse.ts'

export const KINDS_READ = 'Service, EndpointSlice, Node or ServiceCIDR'

/** Names fields and kinds that the API does not have, and that are ignored. Objects of its other kinds are fine. */
export function unknownIn(object: Json): readonly string[] {
  const { kind } = object
  const identity = watchedIdentity(object)
  if (identity !== undefined) {
    const subject = objectText(identity.kind, identity.key)
    return unknownFields(object, API_FIELDS[identity.kind]?.fields ?? {}, subject)
  }
  if (isListKind(kind)) return unknownFields(object, LIST_FIELDS, printable(kind))
  const text = whyNotRead(object)
  return text === undefined ? [] : [text]
}

export function isListKind(kind: unknown): kind is string {
  return typeof kind === 'string' && kind.endsWith('List')
}

function whyNotRead(object: Json): string | undefined {
  const { kind, apiVersion } = object
  if (typeof kind !== 'string' || kind === '')
    return `ignored: an object without a kind; kprobe reads ${KINDS_READ}`
  const metadata = isJson(object.metadata) ? object.metadata : {}
  const scope = metadata.namespace === undefined ? '' : `${plainText(metadata.namespace)}/`
  const subject = objectText(kind, `${scope}${plainText(metadata.name ?? '')}`).trimEnd()
  const read = Object.hasOwn(API_FIELDS, kind) ? API_FIELDS[kind] : undefined
  if (read !== undefined) {
    if (isOfOthers(apiVersion)) return undefined
    const given = apiVersion === undefined ? 'no apiVersion' : `apiVersion ${printable(apiVersion)}`
    return `ignored: ${subject} has ${given}; kprobe reads ${kind} of ${read.apiVersion}`
  }
  if (/^endpoints?$/i.test(kind)) return `ignored: ${subject}; kprobe reads EndpointSlices instead`
  if (isOfOthers(apiVersion)) return undefined
  const near = nearKind(kind)
  if (near !== undefined) return `ignored: ${subject} is of an unknown kind; did you mean ${near}?`
  const isUnknown = GROUPS_READ.test(plainText(apiVersion ?? '')) && !OTHER_KINDS.has(kind)
  return isUnknown ? `ignored: ${subject} is of an unknown kind; kprobe reads ${KINDS_READ}` : undefined
}

/** An extension of the API names a domain; Kubernetes has groups without one, and those of k8s.io. */
function isOfOthers(apiVersion: unknown): boolean {
  const group = typeof apiVersion === 'string' ? apiVersion.split('/')[0] : undefined
  return group?.includes('.') === true && !group.endsWith('.k8s.io')
}

/** The groups of the kinds that are read; without an apiVersion, a kind may be of any group. */
const GROUPS_READ = /^(?:v1|discovery\.k8s\.io\/.*|networking\.k8s\.io\/.*)?$/

/** Kinds of Kubernetes that are no mistake, whatever group is given with them. */
const OTHER_KINDS: ReadonlySet<string> = new Set(
  [
    'Binding ComponentStatus ConfigMap Event LimitRange Namespace PersistentVolume PersistentVolumeClaim Pod',
    'PodTemplate ReplicationController ResourceQuota Secret ServiceAccount Status',
    'Ingress IngressClass IPAddress NetworkPolicy ControllerRevision DaemonSet Deployment ReplicaSet',
    'StatefulSet CronJob Job HorizontalPodAutoscaler PodDisruptionBudget ClusterRole ClusterRoleBinding',
    'Role RoleBinding Lease PriorityClass RuntimeClass StorageClass CSIDriver CSINode VolumeAttachment',
    'APIService CustomResourceDefinition MutatingWebhookConfiguration ValidatingWebhookConfiguration',
    'Kustomization Component Config',
  ].flatMap(line => line.split(' ')),
)

/** Kinds that resemble each other by two letters (Node, Role) are no mistake. */
function nearKind(kind: string): string | undefined {
  const kinds = [...Object.keys(API_FIELDS), 'List']
  return kinds.find(each => each.toLowerCase() === kind.toLowerCase()) ?? nearest(kind, kinds, 1)
}

function unknownFields(object: Json, fields: ApiFields, subject: string): readonly string[] {
  const texts: string[] = []
  visit(object, fields, [], (path, names) => {
    const near = nearest(String(path.at(-1)), names)
    const hint = near === undefined ? '' : `; did you mean ${near}?`
    texts.push(`${subject}: unknown field ${fieldText(path)} ignored${hint}`)
  })
  return texts
}

/** The position of a value in an object: names of fields, and indexes of lists. */
type Path = readonly (string | number)[]

/** Finds unknown fields. One `path` serves the whole walk, since nearly all objects have no unknown field. */
function visit(
  value: unknown,
  fields: ApiFields,
  path: (string | number)[],
  found: (path: Path, names: readonly string[]) => void,
): void {
  if (!Array.isArray(value) && !isJson(value)) return
  for (const [step, item] of Array.isArray(value) ? value.entries() : Object.entries(value)) {
    const known = typeof step === 'string' && Object.hasOwn(fields, step) ? fields[step] : undefined
    const below = typeof step === 'number' ? fields : known
    if (below === true) continue
    path.push(step)
    if (below === undefined) found(path, Object.keys(fields))
    else visit(item, below, path, found)
    path.pop()
  }
}

/** `spec.ports[0].protocl`. */
function fieldText(path: Path): string {
  return path
    .map(step => (typeof step === 'number' ? `[${step}]` : `.${printable(step)}`))
    .join('')
    .replace(/^\./, '')
}

/** Fields below a field. `true`: anything may stand there, a scalar or a mapping with free keys. */
export interface ApiFields {
  readonly [name: string]: ApiFields | true
}

interface ApiKindFields {
  readonly apiVersion: string
  readonly fields: ApiFields
}

const METADATA: ApiFields = {
  ...all('name generateName namespace selfLink uid resourceVersion generation creationTimestamp'),
  ...all('deletionTimestamp deletionGracePeriodSeconds labels annotations finalizers'),
  ...all('ownerReferences managedFields'),
}

const TYPE = all('apiVersion kind')

/**
 * Every field of the kinds that are read, but for those below fields without a meaning here; as of Kubernetes 1.36 (core/v1,
 * discovery/v1, networking/v1).
 */
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
        loadBalancer: { ingress: all('ip hostname ipMode ports') },
        conditions: true,
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
        ...all('podCIDR podCIDRs providerID unschedulable externalID configSource'),
        taints: all('key value effect timeAdded'),
      },
      status: {
        ...all(
          'capacity allocatable phase volumesInUse declaredFeatures conditions daemonEndpoints nodeInfo',
        ),
        ...all('images volumesAttached config runtimeHandlers features'),
        addresses: all('type address'),
      },
    },
  },
  ServiceCIDR: {
    apiVersion: 'networking.k8s.io/v1',
    fields: { ...TYPE, metadata: METADATA, spec: all('cidrs'), status: all('conditions') },
  },
}

/** A list as `kubectl get -o yaml` prints it. */
const LIST_FIELDS: ApiFields = { ...TYPE, metadata: true, items: true }

function all(names: string): ApiFields {
  return Object.fromEntries(names.split(' ').map(name => [name, true]))
}
