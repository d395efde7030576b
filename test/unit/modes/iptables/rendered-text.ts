import { printRule } from '../../../../src/kernel/xt/print.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import type { XtPlace } from '../../../../src/kernel/xt/scope.ts'
import type { ServiceFrontends } from '../../../../src/model/frontend.ts'
import { fixedChains, jumpsOf } from '../../../../src/modes/iptables/chains.ts'
import { rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../../../src/modes/iptables/settings.ts'
import { type Statics, staticsOf } from '../../../../src/modes/iptables/state.ts'
import { cidr } from '../../../support/addresses.ts'
import { endpoint, type Fields, service as serviceObject, slice, tableOf } from '../../model/objects.ts'

export interface World {
  readonly options?: Partial<IptablesOptions>
  readonly large?: boolean
}

const POD_CIDRS = {
  IPv4: { kind: 'cidr', cidr: cidr('10.0.0.0/8') },
  IPv6: { kind: 'cidr', cidr: cidr('fd00::/16') },
} as const

export function staticsIn({ options = {}, large = false }: World = {}, table = tableOf([])): Statics {
  return staticsOf({ ...DEFAULT_IPTABLES_OPTIONS, detector: POD_CIDRS, ...options }, table, large)
}

type Printed = (place: XtPlace, chain: string, rule: XtRule) => string

/** `nat KUBE-SERVICES -d 10.96.0.1/32 ...`; of IPv6 with `ip6` before it. */
const printed: Printed = ({ family, table }, chain, rule) => {
  return `${family === 'ip' ? '' : 'ip6 '}${table} ${chain} ${printRule(rule, family)}`.trimEnd()
}

/** Entries first. */
export function serviceLines(its: ServiceFrontends, statics = staticsIn()): readonly string[] {
  const { chains, entries } = rulesOfService(its, statics)
  return [
    ...entries.map(entry => printed(entry, entry.chain, entry.rule)),
    ...chains.flatMap(chain => [...chain.rules, ...chain.last].map(rule => printed(chain, chain.name, rule))),
  ]
}

/** Of the chains that are always there, those that say something. */
export function fixedLines(statics = staticsIn()): readonly string[] {
  return fixedChains(statics).flatMap(chain =>
    [...chain.rules, ...chain.last].map(rule => printed(chain, chain.name, rule)),
  )
}

export function jumpLines(statics = staticsIn()): readonly string[] {
  return jumpsOf(statics).map(jump => printed(jump, jump.chain, jump.rule))
}

/** Of the Service `ns/web`, with endpoints from `serviceObject` and `slice`. */
export function linesOf(objects: readonly unknown[], world: World = {}): readonly string[] {
  const table = tableOf(objects)
  const found = table.services.get('ns/web')
  if (found === undefined) throw new Error('no Service ns/web')
  return serviceLines(found, staticsIn(world, table))
}

/** A Service `ns/web` with port `p80`, and its endpoints, those that begin with `here` on this node. */
export function web(
  spec: Fields,
  endpoints: readonly string[],
  rest: { readonly status?: Fields } = {},
): readonly unknown[] {
  const ports = [{ name: 'p80', port: 80, ...(spec.type === undefined ? {} : { nodePort: 30_080 }) }]
  const listed = endpoints.map(text => {
    const [address = '', where] = text.split(' ').reverse()
    return endpoint(address, where === 'here' ? { nodeName: 'here' } : {})
  })
  return [
    serviceObject('web', { ports, ...spec }, rest),
    slice('web-1', 'web', listed, { ports: [{ name: 'p80', port: 8080 }] }),
  ]
}
