import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import { SystemError } from '../../../src/netlink/transport.ts'
import { DaemonRun } from '../../support/daemon-run.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { patientMs } from '../../support/patience.ts'
import {
  attribute,
  datagram,
  doneMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  u32,
} from '../../support/scripted-transport.ts'

const OBJECTS = `
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, clusterIP: 10.96.0.1,
  ports: [{port: 80, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, ports: [{name: '', port: 80, protocol: TCP}], endpoints: [{addresses: [10.0.0.1]}]}
`

let folder: string
let run: DaemonRun
/** Last bytes of the node's addresses 192.0.2.x. */
let addresses: readonly number[]
let failure: string
/** How often they could not be read. */
let failures: number

beforeEach(() => {
  folder = temporaryFolder()
  writeFileSync(join(folder, 'objects.yaml'), OBJECTS)
  run = new DaemonRun()
  addresses = [1]
  failure = ''
  failures = 0
})

afterEach(() => run.end())

/** Tells nothing of changes, so that only looking again finds them. */
function openRoute(): ScriptedTransport {
  const transport = new ScriptedTransport(sent => {
    if (failure !== '') {
      failures++
      throw new SystemError('sendmsg', 12, failure)
    }
    const sequence = sequenceOf(sent)
    const head = String.fromCharCode(2, 24, 0, 0) + u32(2)
    const replies = addresses.map(last => {
      const payload = head + attribute(2, `\xc0\x00\x02${String.fromCharCode(last)}`)
      return message({ type: 20, flags: 2, sequence, payload })
    })
    return [datagram(...replies, doneMessage(sequence))]
  })
  const join = () => {
    throw new SystemError('setsockopt', 1, 'EPERM')
  }
  return Object.assign(transport, { join })
}

function configOf(nodePorts: string, ...flags: string[]): Config {
  const argv = [`--source=file:${folder}`, `--nodeport-addresses=${nodePorts}`, ...flags]
  return configFrom(argv)
}

function start(...flags: string[]): void {
  void run.start(configOf('192.0.2.0/24', ...flags), { openRoute })
}

const SOON = { timeout: patientMs(), interval: 20 }
const nodePorts = async () =>
  (await run.rows()).flatMap(({ frontend }) => (frontend.includes(':30080') ? [frontend] : [])).sort()
const nodePortsAt = (wanted: readonly string[]) =>
  vi.waitFor(async () => expect(await nodePorts()).toEqual(wanted), SOON)
const said = (text: string) => run.logged.filter(line => line.includes(text)).length

describe('runDaemon with NodePorts on a range of addresses', () => {
  it('follows the addresses of this machine', async () => {
    start()
    await nodePortsAt(['192.0.2.1:30080'])
    addresses = [1, 7]
    await nodePortsAt(['192.0.2.1:30080', '192.0.2.7:30080'])
    addresses = []
    await nodePortsAt([])
  })

  it('closes no NodePort because they cannot be read, says so once, and follows them afterwards', async () => {
    start()
    await nodePortsAt(['192.0.2.1:30080'])
    failure = 'ENOMEM'
    addresses = [7]
    await vi.waitFor(() => expect(failures).toBeGreaterThan(1), SOON)
    expect(await nodePorts()).toEqual(['192.0.2.1:30080'])
    expect(said('cannot read the addresses of this machine; the last ones stay in use')).toBe(1)
    failure = ''
    await nodePortsAt(['192.0.2.7:30080'])
    expect(said('can be read again')).toBe(1)
  })

  it('programs nothing before it knows them: a restart would close what the kernel serves', async () => {
    failure = 'ENOMEM'
    start()
    await vi.waitFor(() => expect(said('nothing is programmed until they are known')).toBe(1), SOON)
    await vi.waitFor(() => expect(failures).toBeGreaterThan(1), SOON)
    expect([run.syncs.length, run.kernel.generation]).toEqual([0, 1])
    failure = ''
    await nodePortsAt(['192.0.2.1:30080'])
  })

  it('waits for them no longer once nothing depends on them', async () => {
    failure = 'ENOBUFS'
    start()
    await vi.waitFor(() => expect(said('nothing is programmed until')).toBe(1), SOON)
    await run.reconfigure?.(configOf('primary'))
    await vi.waitFor(() => expect(run.syncs).toHaveLength(1), SOON)
  })

  it('ends with 1 when it should sync once and they cannot be read', async () => {
    failure = 'ENOMEM'
    start('--once')
    expect(await run.running).toBe(1)
    expect(run.kernel.generation).toBe(1)
  })
})
