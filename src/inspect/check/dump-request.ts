import { outputFlag } from '../../cli/document.ts'
import { type FlagReader, type FlagSpec, flags, quote } from '../../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../../config/flags.ts'
import { DEFAULT_MODE } from '../../config/modes.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath, whyNotInstance } from '../../config/own-flags.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { MODES } from '../../modes/registry.ts'
import { NAMESPACE_FLAG, readNamespace } from '../model-request.ts'
import { readServiceFlag } from '../service-flag.ts'

/** Object kinds that modes list, each with its mode. */
export const DUMPS = MODES.flatMap(mode => (mode.dumps ?? []).map(dump => ({ mode, ...dump })))
const WHAT: readonly string[] = ['services', 'nft', ...DUMPS.map(({ what }) => what), 'all']
const OUTPUTS: readonly string[] = [
  'text',
  'wide',
  'json',
  'yaml',
  'nft',
  ...DUMPS.map(({ saveFormat }) => saveFormat),
]

const OUTPUT_OF: ReadonlyMap<string, string> = new Map([
  ['nft', 'nft'],
  ...DUMPS.map(({ saveFormat, what }): [string, string] => [saveFormat, what]),
])

const SORT_FIELDS = ['service', 'type', 'protocol', 'frontend', 'action'] as const
type SortField = (typeof SORT_FIELDS)[number]

const DUMP_FLAGS: readonly FlagSpec[] = [
  ...flags({
    '--service NAMESPACE/NAME': [
      'only what serves this Service, with all its endpoints',
      { namesService: true },
    ],
    '--family FAMILY': 'only IPv4 or IPv6 (or ip, ip6)',
  }),
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to; unset: none',
  },
  INSTANCE_FLAG,
  { ...NAMESPACE_FLAG, help: 'only Services of this namespace; with it, --service may be a bare NAME' },
  ...flags({
    '-A, --all-namespaces': 'Services of all namespaces, as without --namespace',
    '--sort-by FIELD': [`order of the rows: ${SORT_FIELDS.join(', ')}`, { choices: SORT_FIELDS }],
    '-w, --watch':
      'print each row that is added or changes, until Ctrl-C; a row that is removed has the endpoints "gone"',
  }),
  outputFlag(OUTPUTS),
]

export const DUMP_HELP = {
  name: 'dump',
  usage: '[services|nft|ipvs|ipset|iptables|all] [flags]',
  description:
    "Prints kprobe's objects in the kernel, read over netlink, and the Service that each object serves. Exits 1 when\n" +
    'packets do not reach a listed frontend, and when the kernel has nothing for the Service of --service.',
  details: [
    'What:',
    '  services   each address and port that is served, and its endpoints (default, except with -o nft); in userspace mode the listener of the daemon, because only the daemon knows the endpoints. -o wide lists every endpoint. For each row, dump follows a packet from outside and one from this node through these rules, and in userspace mode checks whether a process listens',
    '  nft        tables, chains, rules, sets and elements, in the syntax of nft, elements sorted, without counters',
    '  ipvs       virtual servers with their destinations (IPVS mode); with -o ipvsadm-save as `ipvsadm -S -n`',
    '  ipset      sets and entries (IPVS mode); with -o ipset-save as `ipset save`',
    '  iptables   rules of iptables mode and what leads to them, or of kube-proxy, whose chains are the same; with -o iptables-save the whole tables filter, nat and mangle as iptables-save prints them',
    '  all        everything',
    '',
    "IPVS objects have no names: the daemon at --admin-socket knows which Service each belongs to. Without it, only objects that kprobe's nf_tables elements mention have a name.",
  ],
  flags: DUMP_FLAGS,
} as const

export interface Request {
  readonly what: string
  readonly output: string
  /** Empty for all namespaces. */
  readonly namespace: string
  /** Undefined for the order in which all commands print rows. */
  readonly sortBy: SortField | undefined
  readonly isWatched: boolean
  /** Empty for all Services. */
  readonly service: string
  readonly families: readonly NftFamily[]
  readonly adminSocket: string
  readonly proxyName: string | undefined
}

export function readRequest(reader: FlagReader): Request {
  const output = reader.oneOf('output', OUTPUTS, 'text')
  const only = OUTPUT_OF.get(output)
  const [first = only ?? 'services', ...rest] = reader.positionals
  const what = WHAT.find(word => word === first)
  if (what === undefined) reader.fail(quote(first), `no such argument; there are ${WHAT.join(', ')}`)
  for (const argument of rest) reader.fail(quote(argument), 'no such argument')
  if (only !== undefined && what !== undefined && what !== only)
    reader.fail('--output', `${output} is for \`kprobe dump ${only}\``)
  const adminSocket = readSocketPath(reader)
  const proxyName = readInstanceName(reader)
  const unsupported = proxyName === undefined ? undefined : whyNotInstance(proxyName, DEFAULT_MODE)
  if (unsupported !== undefined) reader.fail('--service-proxy-name', unsupported)
  const mode = DUMPS.find(dump => dump.what === what)?.mode
  if (unsupported === undefined && proxyName !== undefined && mode?.notNamed !== undefined)
    reader.fail('--service-proxy-name', `a named proxy cannot use ${mode.title}`)
  return {
    what: what ?? 'services',
    output,
    ...readRows(reader, { what, output }),
    families: readFamilies(reader),
    adminSocket,
    proxyName,
  }
}

function readRows(
  reader: FlagReader,
  { what, output }: { readonly what: string | undefined; readonly output: string },
): Pick<Request, 'service' | 'namespace' | 'sortBy' | 'isWatched'> {
  const namespace = readNamespace(reader)
  const sortBy = reader.given('sort-by') ? reader.oneOf('sort-by', SORT_FIELDS, 'service') : undefined
  const isWatched = reader.bool('watch')
  if (what !== 'services' && what !== undefined)
    for (const flag of ['namespace', 'all-namespaces', 'sort-by', 'watch'])
      if (reader.given(flag)) reader.fail(`--${flag}`, 'is for `kprobe dump services`')
  if (isWatched && !['text', 'wide'].includes(output))
    reader.fail('--watch', `prints rows; -o ${output} is one document`)
  if (namespace !== '' && reader.bool('all-namespaces'))
    reader.fail('--all-namespaces', 'contradicts --namespace')
  return { namespace, sortBy, isWatched, service: readService(reader, { namespace, output }) }
}

function readService(
  reader: FlagReader,
  { namespace, output }: Pick<Request, 'namespace' | 'output'>,
): string {
  const text = reader.text('service') ?? ''
  if (text === '') return ''
  if (DUMPS.some(dump => dump.saveFormat === output && dump.saveTables !== undefined))
    reader.fail('--service', `${output} prints whole tables; -o text and -o json show one Service`)
  return readServiceFlag(reader, namespace)
}

function readFamilies(reader: FlagReader): readonly NftFamily[] {
  if ((reader.text('family') ?? '') === '') return ['ip', 'ip6']
  const family = reader.oneOf('family', ['IPv4', 'IPv6', 'ip', 'ip6', 'ipv4', 'ipv6'], 'ip')
  return [family.endsWith('6') ? 'ip6' : 'ip']
}
