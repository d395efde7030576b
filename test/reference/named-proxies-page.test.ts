import { mkdirSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { missingLines, Page, PageShell } from '../support/page.ts'
import { requireBinaries } from '../support/reference/binaries.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { Program } from '../support/reference/process.ts'
import { openInlet, type RelayHalf } from '../support/reference/relay.ts'
import { PodHost } from './pod-host.ts'

/*
 * The way through docs/named-proxies.md in a cluster: its commands as they are written, on a node that is a few
 * namespaces, with the real kubectl, API server and controller of EndpointSlices.
 */

const PAGE = new Page('docs/named-proxies.md', 'docs/named-data-plane.md')
const steps = PAGE.steps('sh', 'sh cluster')
const NODE = 'example-node'
const STARTED = 'the node is there'
const CREATED_MAX_MS = 60_000

/** A root shell on a node: its own name, a network that forwards, and no network namespaces of others. */
const START_NODE = `exec unshare -nmu sh -euc '
  mount -t tmpfs none /run
  hostname ${NODE}
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
  echo ${STARTED}
  exec sh'`

let plane: ControlPlane
let controller: Program
let inlet: RelayHalf
let host: PodHost
let shell: PageShell
let outputs: readonly string[]

beforeAll(async () => {
  plane = await ControlPlane.start()
  await plane.api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name: NODE } })
  controller = startController()
  await controller.until(hasDefaultNamespace, CREATED_MAX_MS)
  shell = new PageShell({ command: START_NODE, env: readersEnvironment() })
  await shell.printed(STARTED)
  inlet = await openInlet(shell.pid, { listen: { port: plane.port }, dial: plane.way })
  host = new PodHost({
    plane,
    nodePid: shell.pid,
    nodeName: NODE,
    connect: networkOfPod(),
    podIps: ['10.244.1.10', 'fd00:10::1:10'],
  })
  const [printed] = await Promise.all([shell.run(steps), host.host()])
  outputs = printed
})

afterAll(async () => {
  host?.close()
  shell?.end()
  await inlet?.close()
  await controller?.stop('SIGKILL')
  await plane?.stop()
})

function startController(): Program {
  return new Program({
    name: 'endpointslice-controller',
    file: requireBinaries().endpointSliceController,
    args: [plane.kubeconfig('admin')],
    log: join(plane.folder, 'endpointslice-controller.log'),
  })
}

/** The API server creates it after it has said that it is ready. */
async function hasDefaultNamespace(): Promise<boolean> {
  return (await plane.api.send('GET', '/api/v1/namespaces/default')).status === 200
}

function readersEnvironment(): Readonly<Record<string, string>> {
  const home = join(plane.folder, 'home')
  mkdirSync(home)
  const path = [dirname(requireBinaries().kubectl), process.env.PATH].join(delimiter)
  return { KUBECONFIG: plane.kubeconfig('admin'), HOME: home, PATH: path }
}

/** As the page connects the pod where there is no cluster. */
function networkOfPod(): string {
  const [connect] = PAGE.text.match(/^connect\(\) \{\n[\s\S]*?^\}$/m) ?? []
  const [pod] = PAGE.text.match(/^connect pod .*$/m) ?? []
  if (connect === undefined || pod === undefined) throw new Error('the page connects no pod')
  return `${connect}\n${pod}\n`
}

describe('docs/named-proxies.md in a cluster', () => {
  test('has commands for it, and all of them were run', () => {
    expect(PAGE.ofKind('sh cluster').length).toBeGreaterThan(5)
    expect(outputs).toHaveLength(steps.length)
  })

  test.each(steps.map((step, index) => ({ ...step, index })).filter(({ said }) => said !== ''))(
    'prints what it says: $command',
    ({ said, index }) => {
      expect(missingLines(said, outputs[index] ?? ''), `among\n${outputs[index]}`).toEqual([])
    },
  )

  test('leaves nothing behind', async () => {
    const services = await plane.api.listAt('/api/v1/namespaces/default/services', 'v1', 'Service')
    expect(services.map(({ metadata }) => metadata.name)).toEqual(['kubernetes'])
    expect(await plane.api.listAt('/api/v1/namespaces/default/pods', 'v1', 'Pod')).toEqual([])
  })
})
