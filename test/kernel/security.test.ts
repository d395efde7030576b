import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { ApiServer } from '../support/apiserver/http-server.ts'
import { COMMAND, Daemons, EXAMPLE_FLAGS, EXAMPLES } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { patientMs } from '../support/patience.ts'
import { securityEntries } from '../support/security-page.ts'
import { readTrace, straceTo, type Traced } from '../support/traced.ts'

/* The lists of SECURITY.md, in both directions: what the commands do is listed, and what is listed they do. */

/** Of deploy/examples. */
const HEALTH_CHECK_NODE_PORT = 31_000

const daemons = new Daemons()
let folder: string
let traces: readonly Traced[]
/** What the flags of the files in the page were given. */
let files: Readonly<Record<string, string>>

/** Runs a command under strace to its end. */
function traced(name: string, args: readonly string[]): Traced {
  const trace = join(folder, `${name}.trace`)
  const [file = '', ...rest] = [...straceTo(trace), process.execPath, COMMAND, ...args]
  spawnSync(file, rest, { stdio: 'ignore', timeout: patientMs(60_000) })
  return readTrace(trace)
}

/** Every setting is asked for, with a value that this network namespace does not have. */
function configText(mode: 'nftables' | 'iptables'): string {
  return JSON.stringify({
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode,
    iptables: { localhostNodePorts: true },
    conntrack: {
      maxPerCore: 1,
      min: 2_000_000_000,
      tcpEstablishedTimeout: '3h',
      tcpCloseWaitTimeout: '3h',
      tcpBeLiberal: true,
      udpTimeout: '10s',
      udpStreamTimeout: '50s',
    },
  })
}

/** A start, a change, a change of the mode, and the end. */
async function daemonLife(): Promise<Traced> {
  const [objects, config, trace] = [join(folder, 'objects'), join(folder, 'config.yaml'), join(folder, 'run')]
  cpSync(EXAMPLES, objects, { recursive: true })
  writeFileSync(config, configText('nftables'))
  const daemon = await daemons.running({
    source: objects,
    args: [
      `--config=${config}`,
      '--hostname-override=example-node',
      '--conntrack-tcp-timeout-fin-wait=7s',
      '--conntrack-tcp-timeout-time-wait=7s',
      `--admin-socket=${files['--admin-socket']}`,
      `--api=unix://${files['--api']}`,
    ],
    wrapper: straceTo(trace),
  })
  writeFileSync(join(objects, 'more.json'), MORE)
  await daemon.until(() => ruleset().includes('10.96.1.99'), 60_000)
  writeFileSync(config, configText('iptables'))
  await daemon.until(() => /chain KUBE-SERVICES \{[^}]*10\.96\.1\.99/.test(ruleset()), 60_000)
  expect((await daemon.stop()).code).toBe(0)
  return readTrace(trace)
}

/** A start with --state-dir, and the save at the end. */
async function savedState(): Promise<Traced> {
  const [trace, kubeconfig] = [join(folder, 'saved'), join(folder, 'saved-kubeconfig')]
  const server = await ApiServer.start()
  writeFileSync(kubeconfig, server.kubeconfig({}))
  const daemon = await daemons.running({
    source: { kind: 'kube', kubeconfig },
    args: [`--state-dir=${files['--state-dir']}`],
    wrapper: straceTo(trace),
  })
  expect((await daemon.stop()).code).toBe(0)
  await server.close()
  return readTrace(trace)
}

function ruleset(): string {
  return execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
}

const MORE = JSON.stringify({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { namespace: 'shop', name: 'more' },
  spec: { clusterIP: '10.96.1.99', ports: [{ port: 80 }] },
})

/** A kubeconfig whose credentials come from a program that gives none. */
function withPlugin(): string {
  const file = join(folder, 'kubeconfig')
  const name = 'test'
  const exec = {
    apiVersion: 'client.authentication.k8s.io/v1',
    command: '/bin/false',
    interactiveMode: 'Never',
  }
  writeFileSync(
    file,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name, cluster: { server: 'https://127.0.0.1:6443', 'insecure-skip-tls-verify': true } }],
      users: [{ name, user: { exec } }],
      contexts: [{ name, context: { cluster: name, user: name } }],
      'current-context': name,
    }),
  )
  return file
}

beforeAll(async () => {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  folder = daemons.folder()
  files = {
    '/proc/self/oom_score_adj': '/proc/self/oom_score_adj',
    '--admin-socket': join(folder, 'admin.sock'),
    '--api': join(folder, 'api', 'api.sock'),
    '--listen': join(folder, 'listen', 'api.sock'),
    '--write-config-to': join(folder, 'written.yaml'),
    '--state-dir': join(folder, 'state'),
    '--output': join(folder, 'bundle.tar.gz'),
  }
  traces = [
    await daemonLife(),
    traced('write', ['run', ...EXAMPLE_FLAGS, `--write-config-to=${files['--write-config-to']}`]),
    traced('exec', ['api', ...EXAMPLE_FLAGS, '--once', '--exec=/bin/true', '--exec=exit 0 # a line']),
    // A server does not end by itself: the first state ends it.
    traced('listen', ['api', ...EXAMPLE_FLAGS, '--exec=kill $PPID', `--listen=unix://${files['--listen']}`]),
    await savedState(),
    traced('plugin', ['plan', '--source=kube', `--kubeconfig=${withPlugin()}`]),
    traced('bundle', ['debug', 'bundle', `--output=${files['--output']}`]),
    ...['doctor', 'dump', 'cleanup', 'version'].map(command => traced(command, [command])),
  ]
})

afterAll(() => daemons.end())

function entryOfFile(path: string): string | undefined {
  const setting = securityEntries('Kernel settings').find(({ name }) =>
    [name, `/proc/sys/${name}`].includes(path),
  )
  if (setting !== undefined) return setting.name
  return securityEntries('Files').find(({ name }) => {
    const file = files[name] ?? ''
    if (path === file) return true
    if (name === '--state-dir') return [`${file}/kprobe.state`, `${file}/kprobe.state.new`].includes(path)
    if (name === '--output') return path.startsWith(`${file}.`) && path.endsWith('.tmp')
    if (!file.endsWith('.sock')) return false
    // The folder that is made for a socket, and the one in which the socket is made.
    const isBeside = dirname(path) === dirname(file) || dirname(dirname(path)) === dirname(file)
    return path === dirname(file) || (isBeside && /\/\.k\w{6}(\/s)?$/.test(path))
  })?.name
}

it('every file and setting that was opened for writing, made or removed is listed', () => {
  const seen = new Set(traces.flatMap(each => each.files))
  expect([...seen].filter(path => entryOfFile(path) === undefined)).toEqual([])
})

it('every listed file is one that the commands write', () => {
  const seen = new Set(traces.flatMap(each => each.files))
  const unseen = securityEntries('Files').filter(({ name }) => !seen.has(files[name] ?? ''))
  expect(unseen.map(({ name }) => name)).toEqual([])
})

it('every listed setting of a mode that this kernel has is one that the daemon writes', () => {
  const seen = new Set(traces.flatMap(each => each.files).map(entryOfFile))
  const unseen = securityEntries('Kernel settings').filter(
    ({ name, rest }) => !rest.join().includes('IPVS') && !seen.has(name),
  )
  expect(unseen.map(({ name }) => name)).toEqual([])
})

it('the daemon starts no process without a credential plugin, and every program that starts is listed', () => {
  const [daemon] = traces
  expect(daemon).toMatchObject({ processes: 0, programs: [process.execPath] })
  const started = traces.flatMap(({ programs }) => programs.slice(1))
  expect(started.map(path => basename(path)).sort()).toEqual(['false', 'sh', 'sh', 'true'])
  const listed = securityEntries('Programs').map(({ name }) => name)
  expect(listed).toEqual(['users[].user.exec.command', '--exec', '/bin/sh'])
})

it('every port and abstract socket that was bound is listed', () => {
  const listed = securityEntries('Sockets').map(({ name, rest }) => `${name} ${rest.join(' ')}`)
  const ports = new Set(traces.flatMap(each => each.ports))
  ports.delete(0)
  expect(listed.some(entry => entry.startsWith('healthCheckNodePort'))).toBe(true)
  expect(ports.delete(HEALTH_CHECK_NODE_PORT)).toBe(true)
  for (const port of ports) expect(listed.join('\n')).toContain(`port ${port},`)
  expect([...ports].sort()).toEqual([10_249, 10_256])
  const names = traces.flatMap(each => each.abstractSockets)
  expect(names).toContain('@kprobe/kube-proxy')
  expect(names.filter(name => !name.startsWith('@kprobe/'))).toEqual([])
})
