import { MODE_NAMES } from '../../src/config/modes.ts'
import { ARROW, factsOf, functionsOfC, type SourceFacts } from './source-facts.ts'

/** A file of the repository: its path from the top folder, with forward slashes, its text, and what the parser says of it. */
export interface SourceFile extends SourceFacts {
  readonly path: string
  readonly text: string
}

const NO_FACTS: SourceFacts = {
  imports: [],
  loadedImports: [],
  functions: [],
  state: [],
  casts: [],
  endings: [],
  hiddenImports: [],
}

export function sourceFile(path: string, text: string, read = factsOf): SourceFile {
  const facts = /\.[ch]$/.test(path)
    ? { ...NO_FACTS, functions: functionsOfC(text) }
    : read(text, path.endsWith('.tsx'))
  return { path, text, ...facts }
}

const FILE_LINES_MAX = 450
const FUNCTION_LINES_MAX = 60
export const NATIVE_LINES_MAX = 500

const EVERYTHING = 'everything' as const

/** The folders that serve Services. They know the wings by the interfaces of daemon/optional-parts.ts alone. */
export const DAEMON_HALF: readonly string[] = [
  'base',
  'netlink',
  'wire',
  'http',
  'kernel',
  'model',
  'reconcile',
  'modes',
  'flows',
  'source',
  'config',
  'telemetry',
  'daemon',
]

/**
 * What each part of src/ may import, itself aside: a folder, or one file of it. The longest listed path that leads to a
 * file counts. Only optional-parts.ts and main.ts, with the table of commands, know every part.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[] | typeof EVERYTHING>> = {
  base: [],
  netlink: ['base'],
  kernel: ['base', 'netlink'],
  model: ['base'],
  reconcile: ['base', 'model'],
  // What goes wrong on a socket is the same error in every part of the kernel.
  modes: [
    'base',
    'model',
    'kernel',
    'netlink/connection.ts',
    'netlink/errors.ts',
    'netlink/transport.ts',
    'reconcile/dataplane.ts',
    // The configuration that a mode is opened with, and the shape of its own part of it.
    'config/config.ts',
    'config/modes',
    // What a mode measures.
    'telemetry/connection-metrics.ts',
    'telemetry/metric-set.ts',
  ],
  // Bytes of messages, to typed values and back.
  wire: ['base'],
  source: ['base', 'model', 'wire'],
  http: ['base'],
  telemetry: ['base', 'model', 'http', 'source/source.ts'],
  // Flows that conntrack remembers, against what the Services say now.
  flows: ['base', 'model', 'kernel/conntrack'],
  config: ['base', 'model'],
  daemon: DAEMON_HALF,
  // What other programs are told of the model.
  api: ['base', 'model', 'wire'],
  'api/api-service.ts': [...DAEMON_HALF, 'api'],
  'api/metrics.ts': ['telemetry', 'api'],
  'api/command.ts': [...DAEMON_HALF, 'cli', 'api'],
  // From the API server to many nodes.
  relay: ['base', 'model', 'source', 'wire', 'api'],
  'relay/command.ts': [...DAEMON_HALF, 'cli', 'api', 'relay'],
  'relay/metrics.ts': ['telemetry', 'relay'],
  'relay/status-command.ts': [...DAEMON_HALF, 'cli', 'relay'],
  'relay/node-views.ts': ['base', 'model', 'api', 'relay', 'daemon/intake.ts'],
  // What Kubernetes says, against what the kernel holds: it shares nothing with the modes and resolve that it judges.
  proof: [
    'base',
    'kernel/nft',
    'kernel/xt',
    'kernel/ipset',
    'kernel/ipvs',
    'kernel/link',
    'netlink/connection.ts',
    'netlink/transport.ts',
    'config/config.ts',
    'model/promises.ts',
    'model/service.ts',
    'model/snapshot.ts',
  ],
  'proof/prover.ts': [...DAEMON_HALF, 'proof'],
  // What rules do to packets, whoever wrote them.
  'proof/evaluate': ['base', 'kernel'],
  // In the browser.
  ui: ['base', 'model/fields.ts'],
  'inspect/page/page-server.ts': [...DAEMON_HALF, 'inspect/page', 'api/grpc/http-server.ts'],
  // What runs, and the frame of every command.
  cli: DAEMON_HALF,
  // What looks at a daemon or a kernel.
  inspect: [...DAEMON_HALF, 'cli', 'proof'],
  // What others may import: see docs/library.md.
  library: EVERYTHING,
  'optional-parts.ts': EVERYTHING,
  'commands.ts': EVERYTHING,
  'main.ts': EVERYTHING,
}

/** Files that only these may import, whatever MAY_IMPORT says. */
const IMPORTED_ONLY_BY: Readonly<Record<string, readonly string[]>> = {
  'main.ts': [],
  'commands.ts': ['main.ts'],
  'optional-parts.ts': ['main.ts'],
  ui: [],
  library: [],
  // A file of its own in dist/, which `kprobe nodes` loads.
  'inspect/nodes/client-node.ts': ['inspect/nodes/cluster-client.ts'],
}

/** Modules of Node and packages that each file, or else each part of src/, may import; what is not listed may none. */
const MAY_USE: Readonly<Record<string, readonly string[]>> = {
  'api/grpc/http-server.ts': ['node:crypto', 'node:fs/promises', 'node:http2', 'node:net', 'node:tls'],
  'api/grpc/rpc.ts': ['node:zlib'],
  'api/grpc/rpc-call.ts': ['node:http2'],
  'api/grpc/rpc-server.ts': ['node:http2', 'node:net'],
  'api/grpc/grpc-server.ts': ['node:fs/promises', 'node:net'],
  base: [],
  'base/log.ts': ['node:fs', 'pino'],
  // Types alone.
  'base/written.ts': ['@kubernetes/client-node'],
  'base/unix-socket.ts': ['node:fs/promises', 'node:net'],
  'netlink/native.ts': ['node:fs', 'node:module', 'node:url'],
  source: ['node:fs', 'node:fs/promises', 'node:path', 'yaml'],
  'daemon/saved/state-file.ts': ['node:crypto', 'node:fs', 'node:fs/promises', 'node:path'],
  'source/kube/client': [
    'node:crypto',
    'node:dns',
    'node:events',
    'node:fs/promises',
    'node:http',
    'node:http2',
    'node:net',
    'node:path',
    'node:stream',
    'node:tls',
    'node:zlib',
  ],
  'source/kube/client/exec-plugin.ts': ['node:child_process'],
  http: ['node:http', 'node:net'],
  'http/connections.ts': ['node:crypto', 'node:http', 'node:net', 'node:stream', 'node:stream/promises'],
  'relay/admission.ts': ['node:crypto'],
  'relay/connection.ts': ['node:http2', 'node:net'],
  'relay/open.ts': ['node:dns/promises', 'node:fs/promises'],
  'telemetry/metric-set.ts': [
    'prom-client',
    'prom-client/lib/counter.js',
    'prom-client/lib/gauge.js',
    'prom-client/lib/histogram.js',
    'prom-client/lib/registry.js',
  ],
  'telemetry/prom-client.d.ts': ['prom-client'],
  'telemetry/process-metrics.ts': ['node:fs/promises'],
  // SHA-256 alone: names of chains are hashes.
  'modes/xt-common/layout.ts': ['node:crypto'],
  // How many messages a socket lost.
  'kernel/conntrack/record.ts': ['node:fs'],
  'kernel/socket/listeners.ts': ['node:fs'],
  // Kernel settings that have no netlink: /proc/sys and /sys.
  'kernel/sysctl/sysctls.ts': ['node:fs', 'node:fs/promises', 'node:os'],
  config: ['node:fs/promises', 'yaml'],
  // In the browser.
  ui: ['preact', 'preact/hooks'],
  // The kernel's release.
  'daemon/banner.ts': ['node:os'],
  'daemon/instance-lock.ts': ['node:fs/promises'],
  'daemon/network-lock.ts': ['node:fs/promises', 'node:net'],
  'inspect/page/page-server.ts': ['node:fs/promises'],
  'daemon/engine.ts': ['node:fs', 'node:v8'],
  'daemon/process-room.ts': ['node:fs', 'node:fs/promises', 'node:path', 'node:v8'],
  cli: ['yaml'],
  'inspect/admin-client.ts': ['node:http'],
  'api/command.ts': ['node:fs/promises'],
  // A file for a bug report.
  'inspect/bundle-file.ts': ['node:fs/promises', 'node:zlib'],
  'inspect/bundle/debug.ts': ['node:crypto', 'node:fs/promises'],
  'inspect/page/page.ts': ['node:fs/promises', 'node:url'],
  'inspect/nodes/client-node.ts': [
    '@kubernetes/client-node/dist/config.js',
    '@kubernetes/client-node/dist/exec.js',
    '@kubernetes/client-node/dist/oidc_auth.js',
    '@kubernetes/client-node/dist/web-socket-handler.js',
  ],
  'inspect/nodes/cluster-client.ts': ['node:http', 'node:https', 'node:stream'],
  'inspect/nodes/exec-socket.ts': ['node:http', 'node:stream'],
  'inspect/nodes/kubeconfig-files.ts': ['node:path'],
  'inspect/nodes/nodes.ts': ['node:os', 'node:path'],
  'inspect/bundle/redaction.ts': ['node:crypto'],
  'inspect/check/doctor.ts': ['node:fs/promises'],
  'cli/processes.ts': ['node:fs', 'node:fs/promises'],
  'cli/io.ts': ['node:fs/promises', 'node:stream'],
  'modes/foreign/legacy-iptables.ts': ['ffi-rs'],
  // Connections that go through this process.
  'modes/common/forwarder': ['node:dgram', 'node:net'],
  'api/exec.ts': ['node:child_process', 'node:stream'],
  'main.ts': ['node:inspector', 'node:os', 'node:v8'],
}

const FORBIDDEN_MODULES = /^(node:)?(child_process|cluster|vm)$/
/** Start the programs that their user names: `kprobe api --exec`, and the credential plugin of a kubeconfig. */
const STARTS_PROGRAMS = ['api/exec.ts', 'source/kube/client/exec-plugin.ts'] as const
/** Signals the process groups of programs that were started so. */
const SIGNALS_PROGRAMS = 'base/process-group.ts'

/** The rooms of the modes: folders of src/modes/ that are not shared. */
const ROOM = /^modes\/(?!common\/|xt-common\/|foreign\/)([^/]+)\//
/** Lists the modes: a line for each. */
const REGISTRY = 'modes/registry.ts'

/** Why a file may not reach into the room of a mode. */
function roomComplaint(from: string, to: string): string | undefined {
  const room = ROOM.exec(to)?.[1]
  if (room === undefined || from === REGISTRY || ROOM.exec(from)?.[1] === room) return undefined
  return `the room of ${room} mode is for itself and ${REGISTRY} alone`
}

export function importComplaints(file: SourceFile): string[] {
  const complaints: string[] = []
  const from = inSrc(file.path)
  for (const module of file.imports) {
    if (FORBIDDEN_MODULES.test(module) && !STARTS_PROGRAMS.some(each => each === from))
      complaints.push(`${file.path}: imports ${module}: only ${STARTS_PROGRAMS.join(' and ')} start programs`)
    if (!module.startsWith('.')) {
      const usable = usableBy(from)
      if (!usable.includes(module))
        complaints.push(`${file.path}: imports ${module}: MAY_USE of test/support/source-rules.ts lacks it`)
      continue
    }
    if (!/\.(tsx?|json|node)$/.test(module))
      complaints.push(`${file.path}: imports ${module} without its extension`)
    const to = inSrc(resolvePath(file.path, module))
    const why = roomComplaint(from, to) ?? forbidden(from, to)
    if (why !== undefined) complaints.push(`${file.path}: imports src/${to}: ${why}`)
  }
  return complaints
}

/** What the longest listed path that leads to the file may use. */
function usableBy(from: string): readonly string[] {
  const parts = from.split('/')
  for (let length = parts.length; length > 0; length--) {
    const listed = MAY_USE[parts.slice(0, length).join('/')]
    if (listed !== undefined) return listed
  }
  return []
}

function forbidden(from: string, to: string): string | undefined {
  const [fromPart, toPart] = [partOf(from), partOf(to)]
  const room = roomOf(from)
  const single = IMPORTED_ONLY_BY[to]
  if (to !== toPart && single !== undefined)
    return single.includes(from) ? undefined : `only ${single.join(', ')} may`
  if (to === room || to.startsWith(`${room}/`)) return undefined
  const importers = IMPORTED_ONLY_BY[toPart]
  if (importers !== undefined && fromPart !== toPart && !importers.includes(fromPart))
    return `only ${importers.join(', ') || 'nobody'} may`
  const allowed = MAY_IMPORT[room]
  if (allowed === undefined) return `src/${fromPart} has no import rule`
  if (allowed === EVERYTHING || allowed.some(each => to === each || to.startsWith(`${each}/`)))
    return undefined
  return `src/${room} may import ${allowed.length === 0 ? 'nothing' : `only ${allowed.join(', ')}`}`
}

/** Gives the longest path with a rule that leads to a file. */
function roomOf(from: string): string {
  const parts = from.split('/')
  for (let length = parts.length; length > 1; length--) {
    const path = parts.slice(0, length).join('/')
    if (MAY_IMPORT[path] !== undefined) return path
  }
  return partOf(from)
}

function inSrc(path: string): string {
  return path.replace(/^src\//, '')
}

function partOf(inSrcPath: string): string {
  return inSrcPath.split('/')[0] ?? inSrcPath
}

function resolvePath(importer: string, module: string): string {
  const parts = importer.split('/').slice(0, -1)
  for (const part of module.split('/')) {
    if (part === '..') parts.pop()
    else if (part !== '.') parts.push(part)
  }
  return parts.join('/')
}

const MODE_NAME = new RegExp(`'(?:${MODE_NAMES.join('|')})'`)
/** Where the word is no mode: rules that IPVS mode writes, and members of Config. */
const NAMES_NO_MODE: readonly string[] = ['src/config/config.ts', 'src/config/fields.ts']

/** Outside of src/modes/, src/config/modes/ and src/kernel/ no file compares with the name of a mode: it asks the registry. */
export function modeNameComplaints(file: SourceFile): string[] {
  if (/^src\/(modes|kernel|config\/modes)\b/.test(file.path) || NAMES_NO_MODE.includes(file.path)) return []
  const found = codeLines(file.text).find(line => MODE_NAME.test(line))
  return found === undefined ? [] : [`${file.path}: names a mode: ${found.trim()}`]
}

function codeLines(text: string): readonly string[] {
  return text.split('\n').filter(line => !/^\s*(\/\/|\/?\*|import\b)/.test(line))
}

/** Every circle of imports, type imports included, as `a -> b -> a`; one for each file from which one is found. */
export function circleComplaints(files: readonly SourceFile[]): string[] {
  return circlesIn(new Map(files.map(file => [file.path, localImports(file)])))
}

export function circlesIn(edges: ReadonlyMap<string, readonly string[]>): string[] {
  const done = new Set<string>()
  const complaints: string[] = []
  const walk = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path)
    if (start >= 0) complaints.push(`circle: ${[...trail.slice(start), path].join(' -> ')}`)
    if (start >= 0 || done.has(path)) return
    for (const next of edges.get(path) ?? []) walk(next, [...trail, path])
    done.add(path)
  }
  for (const path of edges.keys()) walk(path, [])
  return complaints
}

export function localImports(file: SourceFile): string[] {
  return file.imports.filter(module => module.startsWith('.')).map(module => resolvePath(file.path, module))
}

export function sizeComplaints(file: SourceFile): string[] {
  const lines = lineCount(file.text)
  const complaints: string[] = []
  if (lines > FILE_LINES_MAX) complaints.push(`${file.path}: ${lines} lines, more than ${FILE_LINES_MAX}`)
  for (const { name, line, lines } of file.functions) {
    // The body of a suite is a list of tests, not a function anyone follows from top to bottom.
    if (lines <= FUNCTION_LINES_MAX || (name === ARROW && isSuite(file, line))) continue
    complaints.push(`${file.path}:${line}: ${name} has ${lines} lines, more than ${FUNCTION_LINES_MAX}`)
  }
  return complaints
}

function isSuite(file: SourceFile, line: number): boolean {
  return file.path.endsWith('.test.ts') && /^\s*describe\b/.test(file.text.split('\n')[line - 1] ?? '')
}

export function lineCount(text: string): number {
  return text.split('\n').length - (text.endsWith('\n') ? 1 : 0)
}

/** Mutable state that outlives a call. */
export function moduleStateComplaints({ path, state }: SourceFile): string[] {
  return state.map(declared => `${path}: module-level mutable state: ${declared}`)
}

/** Only main.ts ends the process or sets its exit code. */
export function exitComplaints({ path, endings, imports }: SourceFile): string[] {
  if (path === 'src/main.ts') return []
  const signalsAGroup = (place: string) =>
    path === `src/${SIGNALS_PROGRAMS}` && place.startsWith('process.kill(-pid, ')
  const imported = imports.filter(module => /^(node:)?process$/.test(module))
  return [...endings.filter(place => !signalsAGroup(place)), ...imported].map(
    what => `${path}: ${what}: only src/main.ts exits`,
  )
}

/** Modules that no import names. */
export function loadingComplaints({ path, hiddenImports }: SourceFile): string[] {
  const isAddon = path === 'src/netlink/native.ts'
  return [...new Set(hiddenImports)]
    .filter(way => !(way === 'createRequire' && isAddon))
    .map(way => `${path}: ${way} loads what no import names`)
}

/** `as` says what the compiler cannot check. It is left to the one table-driven codec. */
export function castComplaints({ path, text, casts }: SourceFile): string[] {
  if (path === 'src/netlink/schema.ts') return []
  const lines = text.split('\n')
  return casts.map(line => `${path}:${line}: a cast: ${lines[line - 1]?.trim()}`)
}

const UNFINISHED = /\b(TODO|FIXME|XXX|HACK|STUB|stubbed|for now|not implemented yet|not yet implemented)\b/

export function unfinishedComplaints(file: SourceFile): string[] {
  const found = UNFINISHED.exec(file.text)
  return found === null ? [] : [`${file.path}: says "${found[1]}"`]
}

export function nameComplaints(path: string): string[] {
  const name = path.split('/').at(-1) ?? ''
  // A C file bears the name of what it defines, which C cannot write with a dash.
  const good = /\.[ch]$/.test(name)
    ? /^[a-z0-9]+([-_][a-z0-9]+)*\.[ch]$/
    : /^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9-]+)+$/
  return good.test(name) || /^(README|\.gitkeep)/.test(name) ? [] : [`${path}: file names are kebab-case`]
}
