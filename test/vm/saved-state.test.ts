import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { StateFile, stateChunks } from '../../src/daemon/saved/state-file.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject } from '../../src/model/parse.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../src/model/snapshot.ts'
import { clusterIp, service, services } from '../faults/objects.ts'
import { Daemons } from '../support/daemon.ts'
import { Lab } from '../support/lab/lab.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'

/*
 * The guest has just booted: its kernel has no rule, the file is where a daemon before the boot left it, and there is no
 * API server at the address of the kubeconfig.
 */

const SERVER = 'https://192.0.2.254:6443'
const ENDPOINTS = ['10.180.0.1:8080', '10.180.1.1:8080']

const daemons = new Daemons()
let lab: Lab

beforeEach(async () => {
  lab = await Lab.start()
})

afterEach(async () => {
  await daemons.end()
  await lab?.close()
})

const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
}

function eventsOf(objects: readonly object[]): readonly SourceEvent[] {
  return objects.flatMap(object => {
    const event = parseObject(object)
    return event === undefined || isRefusal(event) ? [] : [event]
  })
}

/** The folder of a state, as a daemon of this node saves it. */
async function savedFolder(): Promise<string> {
  const folder = join(daemons.folder(), 'state')
  const objects = [NODE, ...services(5), ...service(1, { endpoints: ENDPOINTS })]
  const owner = { node: NODE_NAME, proxy: '', server: SERVER, authorities: [] }
  const snapshot = applyEvents(EMPTY_SNAPSHOT, eventsOf(objects))
  await new StateFile(folder, '').write(stateChunks({ owner, savedAt: '2026-01-01T00:00:00Z' }, snapshot))
  return folder
}

function kubeconfig(): string {
  const path = join(daemons.folder(), 'kubeconfig')
  const name = 'test'
  writeFileSync(
    path,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name, cluster: { server: SERVER, 'insecure-skip-tls-verify': true } }],
      users: [{ name, user: { token: 'none' } }],
      contexts: [{ name, context: { cluster: name, user: name } }],
      'current-context': name,
    }),
  )
  return path
}

// A mode is given the Services of a file as it is given those of an API server: test/faults/saved-state.test.ts.
test.each(['nftables', 'ipvs'])(
  'F160: in %s mode a node that has booted serves real packets from the saved state, without an API server',
  async mode => {
    const servers = await lab.servers(ENDPOINTS)
    const daemon = daemons.start({
      source: { kind: 'kube', kubeconfig: kubeconfig() },
      args: [`--state-dir=${await savedFolder()}`, `--proxy-mode=${mode}`],
    })
    await daemon.logged('kprobe serves the saved state until it does')
    await daemon.synced()
    const where = { destination: clusterIp(1), port: 80, rate: 10 }
    const clients = [
      lab.client({ from: 'outside', source: '203.0.113.5', ...where }),
      lab.client({ from: 'node', source: '192.168.0.2', ...where }),
    ]
    for (const client of clients)
      await eventually(async () => (await client.report()).ok >= 20, { limitMs: 120_000 })
    const reports = await Promise.all(clients.map(client => client.stop()))
    expect(reports).toMatchObject(clients.map(() => ({ refused: 0, timeouts: 0, other: 0 })))
    await daemon.caughtUp()
    expect(daemon.said('the API server answers')).toEqual([])
    await daemon.stop()
    await servers.close()
  },
)
