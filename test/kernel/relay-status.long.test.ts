import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { runCommand } from '../../src/commands.ts'
import { nodeOf, serviceOf } from '../support/apiserver/generator.ts'
import { ApiServer } from '../support/apiserver/http-server.ts'
import { tool } from '../support/command.ts'
import { Daemons } from '../support/daemon.ts'
import { FakeIo } from '../support/fake-io.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { identityOf } from '../support/relay.ts'

/* A daemon that reads from a relay, and the real kernel: what `kprobe relay status --wait` has waited for. */

const daemons = new Daemons()
const stop = new AbortController()
let server: ApiServer
let relay: Promise<number>

beforeEach(async () => {
  freshNetns()
  tool('ip', 'link', 'set', 'lo', 'up')
  server = await ApiServer.start()
})

afterEach(async () => {
  await daemons.end()
  stop.abort()
  await relay
  await server.close()
  tool('nft', 'flush', 'ruleset')
})

async function status(...flags: string[]): Promise<{ code: number; out: string; err: string }> {
  const io = new FakeIo({})
  const code = await runCommand(['relay', 'status', ...flags], io)
  return { code, out: io.stdout, err: io.stderr }
}

it('kprobe relay status --wait returns once the kernel holds a Service, and once it holds it no more', async () => {
  server.store.create('nodes', nodeOf(NODE_NAME, 0))
  server.store.create('services', identityOf('cluster-a'))
  const folder = daemons.folder()
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig())
  const at = `unix://${folder}/relay.sock`
  relay = runCommand(
    ['relay', `--kubeconfig=${kubeconfig}`, `--listen=${at}`, '--v=0'],
    new FakeIo({ signal: stop.signal }),
  )
  await daemons.running({ source: { kind: 'kube', kubeconfig }, args: [`--source=relay:${at}`] })
  const wait = [`--relay=${at}`, '--wait', '--timeout=120']
  const rules = (): string => tool('nft', 'list', 'ruleset')
  for (let round = 0; round < 5; round++) {
    const { clusterIP, key } = made(round)
    const asked = [...wait, `--service=${key}`, `--revision=${server.store.version}`]
    expect(await status(...asked)).toMatchObject({ code: 0, err: '' })
    expect(rules()).toContain(clusterIP)
    server.store.delete('services', key)
    const gone = await status(...wait, `--service=${key}`, `--revision=${server.store.version}`)
    expect(gone.code).toBe(0)
    expect(gone.out).toMatch(/^1 of 1 nodes hold namespace-0\/service-\d at Services of revision \d+/m)
    expect(rules()).not.toContain(clusterIP)
  }
})

function made(index: number): { readonly clusterIP: string; readonly key: string } {
  const service = serviceOf(index, { namespaces: 1 })
  server.store.put('services', service)
  return { clusterIP: String(Object(service.spec).clusterIP), key: `namespace-0/service-${index}` }
}
