import type { HookFamily } from '../../kernel/nft/state.ts'
import type { ForeignTable, SurveyedChain } from '../../kernel/nft/survey.ts'
import { markOf } from '../common/rules.ts'
import type { LegacyTable } from './legacy-iptables.ts'

/** A program that often runs beside a service proxy, what it leaves on a node, and what it means for Services. */
interface Program {
  readonly name: string
  /** Its own tables of nf_tables, as `family name`. */
  readonly tables?: RegExp
  /** Names of its chains in tables of iptables, of either flavor. */
  readonly chains?: RegExp
  /** Comments of its rules in tables of iptables-nft. */
  readonly comments?: RegExp
  readonly devices?: RegExp
  /** Names of its processes, which /proc cuts to 15 characters. */
  readonly processes?: readonly string[]
  /** Bits of the packet mark that its rules set or read for purposes of their own. */
  readonly marks?: number
  readonly effect: string
}

/** The order is that of docs/neighbors.md, which has the source of each row. */
const PROGRAMS: readonly Program[] = [
  {
    name: 'Calico',
    tables: /^ip6? calico$/,
    chains: /^cali-/,
    devices: /^(?:cali[0-9a-f]{11}|vxlan\.calico)$/,
    marks: 0xffff0000,
    effect: 'its policies see packets of Services after the translation to an endpoint',
  },
  {
    name: 'Cilium',
    chains: /^(?:OLD_)?CILIUM_/,
    devices: /^cilium_(?:host|net|vxlan)$/,
    marks: 0xffff0fff,
    effect:
      'with kubeProxyReplacement it serves Services itself, before kprobe sees the packets: set it to false',
  },
  {
    name: 'flannel',
    tables: /^ip6? flannel-ipv[46]$/,
    chains: /^FLANNEL-/,
    devices: /^(?:flannel\.\d+|flannel-(?:v6\.\d+|wg))$/,
    effect:
      'it masquerades packets that leave the cluster, and accepts forwarded packets of pods; Services work',
  },
  {
    name: 'Amazon VPC CNI',
    chains: /^AWS-(?:SNAT|CONNMARK)-CHAIN-\d+$/,
    comments: /^AWS, /,
    devices: /^eni[0-9a-f]{11}$/,
    marks: 0x80,
    effect:
      'it restores its mark of connections to node ports from the connection, which kprobe leaves as it is',
  },
  {
    name: 'Antrea',
    tables: /^ip6? antrea$/,
    chains: /^ANTREA-/,
    devices: /^antrea-gw0$/,
    marks: 0xc00,
    effect:
      'AntreaProxy serves ClusterIPs to pods in Open vSwitch, and with proxyAll all Services: kprobe then has none',
  },
  {
    name: 'kube-router',
    chains: /^KUBE-(?:NWPLCY|POD-FW|ROUTER)-/,
    devices: /^kube-(?:bridge|dummy-if)$/,
    marks: 0x10000,
    effect:
      'its policies see packets of Services after the translation; stop its service proxy (k3s starts none)',
  },
  {
    name: 'Multus',
    processes: ['multus-daemon'],
    effect: 'it writes no rules; Services work on networks of pods whose packets pass this network namespace',
  },
  {
    name: 'CNI portmap',
    tables: /^(?:ip6?|inet) cni_hostport$/,
    chains: /^CNI-(?:HOSTPORT|DN)-/,
    marks: 0x2000,
    effect: 'a host port and a node port with the same number: the one with the lower priority number wins',
  },
  {
    name: 'MetalLB',
    processes: ['speaker'],
    effect:
      'it writes no rules; kprobe serves its addresses from the status of the Service; IPVS mode needs strictARP',
  },
  {
    name: 'Istio',
    chains: /^ISTIO_(?:POSTRT|PRERT|OUTPUT|INBOUND|REDIRECT)$/,
    marks: 0xfff,
    effect:
      'ambient mode changes the source of health probes of this node; a sidecar has rules in its pod only',
  },
  {
    name: 'NodeLocal DNSCache',
    devices: /^nodelocaldns$/,
    processes: ['node-cache'],
    effect:
      'queries to its addresses are not tracked, so that no rule of kprobe translates them: this is intended',
  },
  {
    name: 'firewalld',
    tables: /^inet firewalld$/,
    effect:
      'it accepts packets that kprobe translated, unless StrictForwardPorts=yes, which rejects them; its zones decide about other ' +
      'packets of pods; with FlushAllOnReload=yes a reload also removes the chains of iptables mode',
  },
  {
    name: 'ufw',
    chains: /^ufw6?-/,
    effect:
      'it drops forwarded packets by default: allow them with `ufw route allow`, or DEFAULT_FORWARD_POLICY',
  },
  {
    name: 'nftables.service or a firewall like it',
    tables: /^inet filter$/,
    effect:
      'where its file, such as /etc/nftables.conf, begins with `flush ruleset`, each reload removes the rules of all programs, and ' +
      'kprobe restores its own; flush only the own tables there',
  },
  {
    name: 'Docker',
    tables: /^ip6? docker-bridges$/,
    chains: /^DOCKER(?:-|$)/,
    devices: /^docker0$/,
    effect:
      'with iptables it sets the policy of FORWARD to drop: accept packets of pods in the chain DOCKER-USER',
  },
  {
    name: 'Podman',
    tables: /^inet netavark$/,
    chains: /^NETAVARK-/,
    devices: /^podman\d+$/,
    marks: 0x2000,
    effect:
      'a published port and a node port with the same number: the one with the lower priority number wins',
  },
  {
    name: 'libvirt',
    tables: /^ip6? libvirt_network$/,
    chains: /^LIBVIRT_/,
    devices: /^virbr\d+$/,
    effect: 'it rejects forwarded packets from and to its virtual networks only',
  },
]

/** Names of processes that `programsOf` knows. */
export const PROCESSES: ReadonlySet<string> = new Set(PROGRAMS.flatMap(({ processes = [] }) => processes))

export interface Surroundings {
  readonly chains: readonly SurveyedChain[]
  /** The tables of other programs, with their rules. */
  readonly tables?: readonly ForeignTable<HookFamily>[]
  readonly legacyTables: readonly LegacyTable[]
  /** Names of network devices. */
  readonly devices?: readonly string[]
  /** Those of `PROCESSES` that run in this network namespace. */
  readonly processes?: ReadonlySet<string>
  /** The bit of the packet mark that kprobe uses; undefined in modes without one. */
  readonly masqueradeBit?: number
}

export interface FoundProgram {
  readonly name: string
  /** Says by what it was recognized. */
  readonly by: string
  readonly effect: string
  /** Bits of the packet mark that it shares with kprobe. */
  readonly conflict?: string
}

/** Recognizes programs by what they leave on the node. Pure. */
export function programsOf(around: Surroundings): readonly FoundProgram[] {
  const mark = around.masqueradeBit === undefined ? 0 : markOf(around.masqueradeBit)
  return PROGRAMS.flatMap(program => {
    const by = evidenceOf(program, around)
    if (by.length === 0) return []
    const { name, effect, marks = 0 } = program
    const found = { name, by: by.join(', '), effect }
    return (marks & mark) === 0 ? [found] : [{ ...found, conflict: conflictText(marks, mark) }]
  })
}

function conflictText(marks: number, mark: number): string {
  const hex = (value: number) => `0x${(value >>> 0).toString(16)}`
  return `it uses bits ${hex(marks)} of the packet mark, and kprobe ${hex(mark)}: choose another masqueradeBit`
}

function evidenceOf(program: Program, around: Surroundings): readonly string[] {
  const { chains, tables = [], legacyTables, devices = [], processes = new Set() } = around
  const own = chains.map(placeOf).filter(place => program.tables?.test(place))
  const shared = [
    ...chains.filter(({ chain }) => program.chains?.test(chain.name)).map(placeOf),
    ...tables
      .filter(table => hasComment(table, program.comments))
      .map(({ family, name }) => `${family} ${name}`),
    ...legacyTables
      .filter(
        ({ chains }) => typeof chains !== 'string' && chains.some(({ name }) => program.chains?.test(name)),
      )
      .map(({ family, name }) => `legacy ${family} ${name}`),
  ]
  return [
    ...listed('table', own),
    ...listed('rules in', shared),
    ...listed('device', devices.filter(name => program.devices?.test(name)).slice(0, 1)),
    ...listed('process', program.processes?.filter(name => processes.has(name)) ?? []),
  ]
}

function placeOf({ family, table }: SurveyedChain): string {
  return `${family} ${table}`
}

function hasComment({ chains }: ForeignTable<HookFamily>, pattern: RegExp | undefined): boolean {
  if (pattern === undefined) return false
  return chains.some(({ rules }) => rules.some(({ comments }) => comments.some(text => pattern.test(text))))
}

function listed(what: string, names: readonly string[]): readonly string[] {
  const unique = [...new Set(names)].sort()
  return unique.length === 0 ? [] : [`${what} ${unique.join(' and ')}`]
}
