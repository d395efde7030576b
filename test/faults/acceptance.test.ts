import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { EXAMPLES } from '../support/daemon.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { FileSite, SOON_MS } from './file-site.ts'
import { differences, frontendNames, generation, listRuleset, nft } from './kernel.ts'
import { clusterIp, service, services } from './objects.ts'

const site = FileSite.ofEachTest()

/** Lines of strace about new processes and programs; threads share CLONE_THREAD. */
function processLines(trace: string): readonly string[] {
  const calls = /\b(execve|execveat|fork|vfork|clone|clone3)\(/
  return trace.split('\n').filter(line => calls.test(line) && !line.includes('CLONE_THREAD'))
}

it('starts no process through a start, an edit and a healing, as strace sees it', async () => {
  const trace = join(site.folder, 'trace')
  const calls = 'trace=execve,execveat,fork,vfork,clone,clone3'
  const wrapper = ['strace', '-f', '--seccomp-bpf', '-o', trace, '-e', calls]
  const daemon = await site.running(services(3), { wrapper })
  await daemon.loggedAfter('committed', () => site.write(services(4)))
  nft('flush ruleset')
  await daemon.logged('repaired foreign changes')
  await daemon.stop()
  const lines = processLines(readFileSync(trace, 'utf8'))
  expect(lines).toHaveLength(1)
  expect(lines[0]).toContain(`execve("${process.execPath}"`)
  expect(await differences(services(4))).toEqual([])
})

it('leaves the generation of the kernel as it was when it starts again and nothing changed', async () => {
  const first = await site.running(services(20))
  expect((await first.stop()).code).toBe(0)
  const [before, text] = [await generation(), listRuleset()]
  const second = await site.daemons.running({ source: site.folder })
  expect(second.said('first sync complete')).toMatchObject([{ changes: 0, bytes: 0 }])
  expect(await generation()).toBe(before)
  expect((await second.stop()).code).toBe(0)
  expect(await generation()).toBe(before)
  expect(listRuleset()).toBe(text)
})

it('leaves rules that nft lists as text and as JSON', async () => {
  const daemon = site.daemons.start({ source: EXAMPLES, args: ['--once'] })
  expect((await daemon.ended()).code).toBe(0)
  expect(execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })).toContain('"shop/cart:http"')
  const json: unknown = JSON.parse(execFileSync('nft', ['-j', 'list', 'ruleset'], { encoding: 'utf8' }))
  expect(json).toHaveProperty('nftables')
})

it('changes the kernel soon after an edit', async () => {
  await site.running(services(3))
  const tookMs: number[] = []
  for (const count of [4, 2, 5]) {
    site.write(services(count))
    tookMs.push(await eventually(() => frontendNames().size === count))
  }
  site.write([...services(4), ...service(4, { endpoints: ['10.9.9.9:9999'] })])
  const isThere = () => listRuleset().includes('10.9.9.9 . 9999')
  tookMs.push(await eventually(isThere))
  expect(Math.min(...tookMs)).toBeLessThan(patientMs(SOON_MS))
  expect(listRuleset()).toContain(clusterIp(4))
})
