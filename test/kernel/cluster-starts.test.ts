import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { CLUSTER_STARTS, type ClusterStart, startTitle } from '../support/cluster-starts.ts'
import { runInProcess } from '../support/command.ts'
import { EXAMPLES } from '../support/daemon.ts'
import { forwardPackets } from '../support/lab/netns.ts'

/* The configurations of clusters, given to the commands: docs/clusters. */

let folder = ''

beforeAll(() => {
  forwardPackets()
  folder = mkdtempSync(join(tmpdir(), 'cluster-starts-'))
})
afterAll(() => rmSync(folder, { recursive: true }))

/** The start of kube-proxy, with the example objects in place of the API server. */
function argsOf({ argv, file }: ClusterStart): readonly string[] {
  const path = join(folder, 'config.conf')
  if (file !== undefined) writeFileSync(path, file)
  const kept = argv.filter(flag => !/^--(?:kubeconfig|master|hostname-override)=/.test(flag))
  const flags = kept.map(flag => (flag.startsWith('--config=') ? `--config=${path}` : flag))
  return [...flags, `--source=file:${EXAMPLES}`, '--hostname-override=example-node']
}

/** The machine may lack IPVS. */
const starts = CLUSTER_STARTS.filter(({ mode }) => mode !== 'ipvs').map(start => ({
  ...start,
  title: startTitle(start),
}))

/** Objects of the mode, in the words of the plan. */
const OBJECTS = { nftables: 'ip kube-proxy', iptables: 'KUBE-SVC-', ipvs: '' } as const

describe.each(starts)('the start of kube-proxy in $title', start => {
  it('is a configuration of plan, which lists objects of its mode', async () => {
    const { code, out, err } = await runInProcess(['plan', ...argsOf(start)])
    expect(code).toBe(3)
    // What the mode costs is advice, and no warning about the configuration.
    expect(err).toMatch(start.mode === 'iptables' ? /^kprobe plan: with 10 Services, [^\n]*\n$/ : /^$/)
    expect(out).toContain(OBJECTS[start.mode])
  })

  it('is a configuration of doctor, which finds that kprobe can serve', async () => {
    const { code, out, err } = await runInProcess(['doctor', ...argsOf(start)])
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toContain('kprobe can serve here')
  })
})
