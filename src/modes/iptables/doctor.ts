import type { Clock } from '../../base/clock.ts'
import type { Config } from '../../config/config.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import {
  type MissingExtension,
  missingText,
  probeXt,
  XT_EXTENSIONS,
  type XtUse,
} from '../../kernel/xt/probe.ts'
import { Connection } from '../../netlink/connection.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import type { Finding, KernelSockets, Look, ReadText } from '../mode.ts'
import { iptablesAdvice } from './advice.ts'
import { answersAtLoopback, ROUTE_LOCALNET } from './settings.ts'

/** Checks what iptables mode needs of the kernel besides nf_tables, one finding for each requirement. Changes nothing. */
export async function iptablesFindings(config: Config, look: Look): Promise<readonly Finding[]> {
  const missing = missingXt(look.sockets, look.clock)
  return config.proxyMode === 'iptables'
    ? [
        ...extensionFindings(missing),
        ...(await iptablesSettingFindings(config, look.read)),
        ...adviceFindings(config),
      ]
    : [summary(missing)]
}

/** The uses to report, including those of IPVS mode. */
const USES: readonly (readonly [use: XtUse, kind: Finding['kind'], meaning: string])[] = [
  ['services', 'missing', 'every Service'],
  ['affinity', 'warning', 'session affinity'],
  ['sctp', 'warning', 'SCTP ports'],
  ['counters', 'note', 'two metrics of kube-proxy'],
]

export function extensionFindings(missing: readonly MissingExtension[]): readonly Finding[] {
  return USES.map(([use, kind, meaning]): Finding => {
    const lacks = missing.filter(each => each.use === use)
    const names = XT_EXTENSIONS.filter(each => each.use === use).map(({ name }) => name)
    const subject = `xtables for ${meaning}`
    if (lacks.length === 0) return { kind: 'ok', subject, text: names.join(', ') }
    const [family, ...others] = new Set(lacks.map(each => each.family))
    return { kind, subject, text: missingText(lacks), family: others.length === 0 ? family : undefined }
  })
}

function adviceFindings(config: Config): readonly Finding[] {
  const text = iptablesAdvice(config, 1_000)
  return text === undefined ? [] : [{ kind: 'note', subject: 'cost of iptables mode', text }]
}

/** Checks the sysctls that the mode sets, and the one that its rules depend on. */
export async function iptablesSettingFindings(config: Config, read: ReadText): Promise<readonly Finding[]> {
  const clients = await read('/sys/module/xt_recent/parameters/ip_list_tot')
  return [
    routeLocalnet(answersAtLoopback(config), await read(`/${ROUTE_LOCALNET.sysctl.path}`)),
    {
      kind: 'note',
      subject: 'clients with session affinity',
      text: `an endpoint remembers the latest ${clients ?? '100 (default)'} at most; the parameter ip_list_tot of the module xt_recent sets this`,
    },
  ]
}

const UNWANTED =
  '1: hosts of the network can reach sockets bound to 127.0.0.1; node ports do not answer there'

function routeLocalnet(wanted: boolean, now: string | undefined): Finding {
  const subject = ROUTE_LOCALNET.sysctl.name
  if (!wanted && now === '1') return { kind: 'warning', subject, text: UNWANTED }
  if (!wanted)
    return { kind: 'ok', subject, text: `${now ?? 'absent'}: node ports do not answer at 127.0.0.1` }
  if (now === '1') return { kind: 'ok', subject, text: '1: node ports answer at 127.0.0.1' }
  return {
    kind: 'note',
    subject,
    text: `${now ?? 'absent'}: \`kprobe init\` or the daemon sets it to 1, so that node ports answer at 127.0.0.1`,
  }
}

/** Combines the findings into one, for a node in another mode. */
function summary(missing: readonly MissingExtension[]): Finding {
  const lacks = missing.filter(({ use }) => use === 'services')
  const text = lacks.length === 0 ? 'usable on this kernel' : `this kernel lacks ${missingText(lacks)}`
  return { kind: 'note', subject: 'iptables mode', text }
}

function missingXt(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
): readonly MissingExtension[] {
  const transport = netfilter()
  try {
    return probeXt(new Connection({ transport, clock }))
  } finally {
    // The client waits for each reply, so nothing is in flight.
    void transport.close()
  }
}

/** Names the families in which the kernel lacks extensions that the rules of every Service need, and these. */
export function lackingFamilies(
  sockets: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
): ReadonlyMap<NftFamily, string> {
  const missing = missingXt(sockets, clock).filter(({ use }) => use === 'services')
  const families = new Set(missing.map(({ family }) => family))
  return new Map(
    [...families].map(family => [family, missingText(missing.filter(each => each.family === family))]),
  )
}

/** Throws where the kernel lacks in both families extensions that the rules of every Service need. */
export function demandIptables(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): void {
  const lacking = lackingFamilies(sockets, clock)
  if (lacking.size < NFT_FAMILIES.length) return
  const lack = [...lacking.values()].join('; ')
  throw new Error(
    `this kernel lacks matches or targets that iptables mode needs: ${lack}. Run \`kprobe doctor --proxy-mode=iptables\` for the other requirements`,
  )
}

/** Describes the extensions that are missing for some Services only; undefined when none is. */
export function lesserLack(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): string | undefined {
  const missing = missingXt(sockets, clock).filter(({ use }) => use === 'affinity' || use === 'sctp')
  return missing.length === 0 ? undefined : missingText(missing)
}
