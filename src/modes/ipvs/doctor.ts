import { failureText } from '../../base/errors.ts'
import type { Config } from '../../config/config.ts'
import type { IpsetType } from '../../kernel/ipset/state.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { ipvsSysctls } from '../../kernel/sysctl/sysctls.ts'
import { hasXtExtension } from '../../kernel/xt/probe.ts'
import { Connection } from '../../netlink/connection.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { forFamilies, LAYOUTS, NFT_FAMILIES } from '../common/tables.ts'
import type { Finding, Look, ReadText } from '../mode.ts'
import { type IpvsKernel, withIpvsKernel } from './observe.ts'

/** Checks what IPVS mode needs besides nf_tables, one finding for each requirement. Changes nothing. */
export async function ipvsFindings(config: Config, look: Look): Promise<readonly Finding[]> {
  const { read } = look
  return await withIpvsKernel(look, async kernel => {
    const found = [
      ...ipvsVersion(kernel),
      ...IPSET_TYPES.map(type => checked(`ipset ${type}`, () => revisionsOf(kernel, type))),
      await xtSetFinding(look),
      await addressFinding(read),
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

type Checked = Omit<Finding, 'subject'>

function checked(subject: string, check: () => Checked): Finding {
  try {
    return { subject, ...check() }
  } catch (error) {
    return { kind: 'missing', subject, text: failureText(error) }
  }
}

/** Makes the finding for what the kernel has in these families only. `what` is its name in the kernel. */
function inFamilies(present: readonly NftFamily[], ok: string, what: string): Checked {
  if (present.length === NFT_FAMILIES.length) return { kind: 'ok', text: ok }
  const family = NFT_FAMILIES.find(each => present.length > 0 && !present.includes(each))
  return { kind: 'missing', text: what, family }
}

function ipvsVersion({ ipvs }: IpvsKernel): readonly Finding[] {
  const subject = 'IPVS'
  const found = checked(subject, () => {
    const { version, connectionTableSize } = ipvs.info()
    return { kind: 'ok', text: `${version}, ${connectionTableSize} buckets for connections` }
  })
  if (found.kind !== 'ok') return [found]
  const v6 = checked('IPVS for IPv6', () =>
    inFamilies(
      ipvs.hasIpv6() ? NFT_FAMILIES : ['ip'],
      'virtual servers',
      'CONFIG_IP_VS_IPV6, and a kernel without ipv6.disable=1',
    ),
  )
  return [found, v6]
}

function revisionsOf({ ipset }: IpvsKernel, type: IpsetType): Checked {
  const revisions = forFamilies(family => ipset.revision(type, LAYOUTS[family].model))
  const { ip: v4, ip6: v6 } = revisions
  const present = NFT_FAMILIES.filter(family => revisions[family] !== undefined)
  const module = `ip_set_${type.replace(/[:,]/g, '_').replace('_ip_port', '_ipport')}`
  const ok = v4 === v6 ? `revision ${v4}` : `revision ${v4}, and ${v6} for IPv6`
  return inFamilies(present, ok, `needed for Services: module ${module}`)
}

const XT_SET = { name: 'set', revision: 4 } as const

async function xtSetFinding({ sockets, clock }: Look): Promise<Finding> {
  const transport = sockets.netfilter()
  const found = checked('nf_tables rules about ipsets', () => {
    const connection = new Connection({ transport, clock })
    const present = NFT_FAMILIES.filter(family =>
      hasXtExtension(connection, { ...XT_SET, family: LAYOUTS[family].nfproto }),
    )
    const lacks = 'CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XT_SET: modules nft_compat, xt_set'
    return inFamilies(present, 'nft_compat and xt_set', lacks)
  })
  await transport.close()
  return found
}

/** Checks whether the kernel takes IPv6 addresses at the device, or at a new one. */
async function addressFinding(read: ReadText): Promise<Finding> {
  const subject = `IPv6 addresses of ${DUMMY_DEVICE}`
  const paths = [DUMMY_DEVICE, 'default'].map(device => `net/ipv6/conf/${device}/disable_ipv6`)
  for (const path of paths) {
    const value = await read(`/proc/sys/${path}`)
    if (value === '0') return { kind: 'ok', subject, text: 'allowed' }
    if (value === '1') return { kind: 'missing', subject, text: `the sysctl ${path} is 1`, family: 'ip6' }
  }
  const text = 'this kernel runs without IPv6 (ipv6.disable=1, or no CONFIG_IPV6)'
  return { kind: 'missing', subject, text, family: 'ip6' }
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
  return await Promise.all(
    ipvsSysctls(ipvs).map(async ({ sysctl, value }): Promise<Finding> => {
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
  const missing = found.filter(({ kind }) => kind === 'missing')
  const [family, ...others] = new Set(missing.map(each => each.family))
  const names = `${missing.map(({ subject }) => subject).join('; ')} missing`
  const text =
    missing.length === 0
      ? 'can be used here'
      : family === undefined || others.length > 0
        ? `cannot be used here: ${names}`
        : `can be used here, without ${LAYOUTS[family].model}: ${names}`
  return { kind: 'note', subject: 'IPVS mode', text }
}
