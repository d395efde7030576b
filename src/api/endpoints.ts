import { familyOf, formatIp, type Ip } from '../base/ip.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { Service } from '../model/service.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { draftsOf, type EndpointDraft, hostnamesOf } from './endpoint-drafts.ts'
import { type ServiceView, targetOf } from './objects.ts'
import type { localv1 } from './schema.ts'

type EndpointMessage = MessageOf<typeof localv1.Endpoint>
type PortName = MessageOf<typeof localv1.PortName>

/** The endpoints that this node may send the Service's connections to, by key; with `only`, those of these addresses. */
export function* endpointsOfService(
  view: ServiceView,
  only?: ReadonlySet<Ip>,
): Steps<ReadonlyMap<string, EndpointMessage>> {
  const terms = termsOf(view.service)
  const drafts = yield* draftsOf(view.frontends, only)
  const hostnames = yield* hostnamesOf(view.slices, drafts)
  const endpoints = new Map<string, EndpointMessage>()
  const pauses = new Pauses()
  for (const [ip, draft] of drafts) {
    const hostname = hostnames.get(ip)
    for (const overrides of variantsOf(draft, terms))
      endpoints.set(keyOf(ip, overrides), endpointMessage(terms, draft, { ip, hostname, overrides }))
    if (pauses.due()) yield
  }
  return endpoints
}

/** Their keys alone. */
export function* endpointKeys(view: ServiceView, only?: ReadonlySet<Ip>): Steps<Set<string>> {
  const terms = termsOf(view.service)
  const keys = new Set<string>()
  const pauses = new Pauses()
  for (const [ip, draft] of yield* draftsOf(view.frontends, only)) {
    for (const overrides of variantsOf(draft, terms)) keys.add(keyOf(ip, overrides))
    if (pauses.due()) yield
  }
  return keys
}

function keyOf(ip: Ip, overrides: readonly PortName[]): string {
  return `${formatIp(ip)}${overrides.map(({ Name = '', Port }) => `,${Name}=${Port}`).join('')}`
}

/** What the Service's own object says about all of its endpoints. */
interface EndpointTerms {
  /** Target ports by the name of the service port. */
  readonly targets: ReadonlyMap<string, number | string>
  /** A policy keeps some traffic on the node. */
  readonly scoped: boolean
}

export function termsOf(service: Service): EndpointTerms {
  const { ports, internalTrafficPolicy, externalTrafficPolicy } = service
  return {
    targets: new Map(ports.map(port => [port.name, targetOf(service, port)])),
    scoped: internalTrafficPolicy === 'Local' || externalTrafficPolicy === 'Local',
  }
}

interface Particulars {
  readonly ip: Ip
  readonly hostname: string | undefined
  readonly overrides: readonly PortName[]
}

function endpointMessage({ scoped }: EndpointTerms, draft: EndpointDraft, its: Particulars): EndpointMessage {
  const { ip, hostname, overrides } = its
  const { local, internal, external } = draft
  const address = [formatIp(ip)]
  return {
    Hostname: hostname,
    IPs: familyOf(ip) === 'IPv4' ? { V4: address } : { V6: address },
    Local: local || undefined,
    PortOverrides: overrides.length === 0 ? undefined : overrides,
    Scopes: scoped ? { Internal: internal || undefined, External: external || undefined } : undefined,
  }
}

/**
 * The ports that are not the ones the Service names, once for each endpoint that has the address: pods in the network of
 * their node share it, and differ in nothing but their ports.
 */
function variantsOf({ ports }: EndpointDraft, { targets }: EndpointTerms): readonly (readonly PortName[])[] {
  const lists = [...ports].map(([name, numbers]) => ({ name, numbers: [...numbers] }))
  const count = Math.max(1, ...lists.map(({ numbers }) => numbers.length))
  const variants: PortName[][] = []
  for (let index = 0; index < count; index++) {
    const overrides: PortName[] = []
    for (const { name, numbers } of lists) {
      const port = numbers[index] ?? numbers[0] ?? 0
      if (port !== targets.get(name)) overrides.push({ Name: name || undefined, Port: port })
    }
    variants.push(overrides)
  }
  return variants
}
