import { errorOf, failureText } from '../../base/errors.ts'
import { FAMILIES } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import type { IpsetType } from '../../kernel/ipset/state.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from '../../kernel/nft/constants.ts'
import { ipvsSysctls } from '../../kernel/sysctl/sysctls.ts'
import { hasXtExtension } from '../../kernel/xt/probe.ts'
import { Connection } from '../../netlink/connection.ts'
import type { Finding, Look, ReadText } from '../mode.ts'
import { type IpvsKernel, withIpvsKernel } from './observe.ts'

/** Checks what IPVS mode needs besides nf_tables, one finding for each requirement. Changes nothing. */
export async function ipvsFindings(config: Config, look: Look): Promise<readonly Finding[]> {
  const { read } = look
  return await withIpvsKernel(look, async kernel => {
    const found = [
      checked('IPVS', () => ipvsVersion(kernel)),
      ...IPSET_TYPES.map(type => checked(`ipset ${type}`, () => revisionsOf(kernel, type))),
      await xtSetFinding(look),
      ...(await moduleFindings(config, read)),
    ]
    return config.proxyMode === 'ipvs'
      ? [...found, ...(await ipvsSettingFindings(config, read))]
      : [summary(found)]
  })
}

const IPSET_TYPES: readonly IpsetType[] = [
  'hash:ip',
  'hash:ip,port',
  'hash:ip,port,ip',
  'hash:ip,port,net',
  'bitmap:port',
]

function checked(subject: string, check: () => string): Finding {
  try {
    return { kind: 'ok', subject, text: check() }
  } catch (error) {
    return { kind: 'missing', subject, text: failureText(error) }
  }
}

function ipvsVersion({ ipvs }: IpvsKernel): string {
  const { version, connectionTableSize } = ipvs.info()
  return `${version}, ${connectionTableSize} buckets for connections`
}

function revisionsOf({ ipset }: IpvsKernel, type: IpsetType): string {
  const [v4, v6] = FAMILIES.map(family => ipset.revision(type, family))
  if (v4 === undefined || v6 === undefined)
    throw new Error(
      `needed for Services: module ip_set_${type.replace(/[:,]/g, '_').replace('_ip_port', '_ipport')}`,
    )
  return v4 === v6 ? `revision ${v4}` : `revision ${v4}, and ${v6} for IPv6`
}

const XT_SET = { name: 'set', revision: 4 } as const

async function xtSetFinding({ sockets, clock }: Look): Promise<Finding> {
  const transport = sockets.netfilter()
  const subject = 'nf_tables rules about ipsets'
  try {
    const connection = new Connection({ transport, clock })
    const has = [NFPROTO_IPV4, NFPROTO_IPV6].every(family =>
      hasXtExtension(connection, { ...XT_SET, family }),
    )
    return has
      ? { kind: 'ok', subject, text: 'nft_compat and xt_set' }
      : {
          kind: 'missing',
          subject,
          text: 'CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_SET: modules nft_compat, xt_set',
        }
  } catch (error) {
    return { kind: 'missing', subject, text: failureText(errorOf(error)) }
  } finally {
    await transport.close()
  }
}

/** Reports loaded modules; the kernel may load others on demand, and only creating objects would prove it. */
async function moduleFindings({ ipvs }: Config, read: ReadText): Promise<readonly Finding[]> {
  const modules = (await read('/proc/modules')) ?? ''
  const loaded = [...modules.matchAll(/^(\S+) /gm)].map(([, name = '']) => name)
  const schedulers = loaded.filter(name => SCHEDULER.test(name)).map(name => name.slice('ip_vs_'.length))
  const isLoaded = schedulers.includes(ipvs.scheduler)
  const others = schedulers.length === 0 ? 'none' : schedulers.sort().join(', ')
  const later = 'the kernel loads the module on first use'
  return [
    {
      kind: isLoaded ? 'ok' : 'note',
      subject: `IPVS scheduler ${ipvs.scheduler}`,
      text: isLoaded ? `loaded (${others})` : `not loaded (${others} loaded): ${later}`,
    },
    loaded.includes('dummy')
      ? { kind: 'ok', subject: 'dummy devices', text: 'loaded' }
      : { kind: 'note', subject: 'dummy devices', text: `module dummy not loaded: ${later}` },
  ]
}

/** Scheduler modules of net/netfilter/ipvs. Other modules with the prefix (ip_vs_ftp) are not schedulers. */
const SCHEDULER = /^ip_vs_(?:rr|wrr|lc|wlc|lblc|lblcr|dh|sh|mh|sed|nq|fo|ovf|twos)$/

/** Checks the sysctls that the mode needs, after the check of IPVS, which loads the module that has them. */
export async function ipvsSettingFindings({ ipvs }: Config, read: ReadText): Promise<readonly Finding[]> {
  const release = (await read('/proc/sys/kernel/osrelease')) ?? ''
  return await Promise.all(
    ipvsSysctls(ipvs, release).map(async ({ sysctl, value }): Promise<Finding> => {
      const now = await read(`/${sysctl.path}`)
      if (now === undefined) return { kind: 'warning', subject: sysctl.name, text: ABSENT }
      if (now === String(value)) return { kind: 'ok', subject: sysctl.name, text: now }
      return {
        kind: 'note',
        subject: sysctl.name,
        text: `${now}: \`kprobe init\` or the daemon sets it to ${value}`,
      }
    }),
  )
}

/** The text for a missing sysctl: IPVS hides its sysctls from other user namespaces. */
const ABSENT = 'not found: load ip_vs (needs CONFIG_IP_VS_NFCT; not available in a user namespace)'

/** Combines the findings into one, for a node in another mode. */
function summary(found: readonly Finding[]): Finding {
  const missing = found.filter(({ kind }) => kind === 'missing').map(({ subject }) => subject)
  const text =
    missing.length === 0 ? 'can be used here' : `cannot be used here: ${missing.join('; ')} missing`
  return { kind: 'note', subject: 'IPVS mode', text }
}
