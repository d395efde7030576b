import { spawnSync } from 'node:child_process'
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { migrateScript } from '../../../../src/inspect/nodes/migrate-script.ts'
import { command } from '../../../../src/inspect/nodes/nodes.ts'
import { FakeIo } from '../../../support/fake-io.ts'
import { temporaryFolder } from '../../../support/folder.ts'

let folder = ''
beforeEach(() => {
  folder = temporaryFolder()
})

/** The answers of a cluster in which the label of a node decides which proxy runs there. */
interface Cluster {
  readonly nodeSelector?: string
  readonly labels?: string
  readonly affinity?: string
  /** Of `kprobe verify` in the pod. */
  readonly verify?: number
  readonly perSecond?: number
  readonly rejects?: number
  /** kube-proxy's pod stays, because something reverts its affinity. */
  readonly stays?: boolean
  /** The API server refuses to remove the label. */
  readonly keepsLabel?: boolean
  /** The rollout of the new affinity does not end within the timeout, as with hundreds of nodes. */
  readonly rollsLong?: boolean
}

/** Writes a kubectl that has the state of the node in a file, and notes what changes something. */
function kubectlOf({
  nodeSelector = '{"kprobe.io/proxy":"kprobe"}',
  labels = '{"k8s-app":"kube-proxy"}',
  affinity = '',
  verify = 0,
  perSecond = 100,
  rejects = 0,
  stays = false,
  keepsLabel = false,
  rollsLong = false,
}: Cluster): string {
  const path = join(folder, 'kubectl')
  writeFileSync(
    path,
    `#!/bin/sh
cd ${folder}
shift 2 # --context and --namespace
proxy=kube-proxy
[ -e labelled ] && proxy=kprobe
case "$*" in
  'get daemonset kprobe '*) printf '%s' '${nodeSelector}' ;;
  'get daemonset kube-proxy '*) printf '%s' '${labels} ${affinity}' ;;
  "get pods --selector=k8s-app=$proxy "*) echo "$proxy-x [] True" ;;
  'get pods '*) echo "old-x [2026-01-01T00:00:00Z] True"; ${stays ? 'echo "kube-proxy-x [] False"' : ':'} ;;
  'label --overwrite node node-1 kprobe.io/proxy=kprobe') touch labelled; echo label >>changes ;;
  'label node node-1 kprobe.io/proxy-') ${keepsLabel ? 'exit 1' : ':'}; rm labelled; echo unlabel >>changes ;;
  'patch daemonset kube-proxy '*) echo patch >>changes ;;
  'rollout status '*) ${rollsLong ? 'exit 1' : ':'} ;;
  *'kprobe verify') exit ${verify} ;;
  *'kprobe top '*) printf '{\\n  "rows": [\\n    {\\n      "perSecond": 9\\n    }\\n  ],\\n  "perSecond": ${perSecond},\\n  "rejectsPerSecond": ${rejects},\\n' ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
`,
  )
  chmodSync(path, 0o755)
  return folder
}

function migrate(cluster: Cluster, { check = '' } = {}) {
  const script = migrateScript({
    node: 'node-1',
    namespace: 'kube-system',
    kubectlFlags: ['--context=my context'],
    check,
    timeoutS: 0,
  })
  const PATH = `${kubectlOf(cluster)}:${process.env.PATH}`
  const { status, stderr } = spawnSync('sh', ['-c', script], { encoding: 'utf8', env: { PATH } })
  const changes = join(folder, 'changes')
  return {
    code: status,
    err: stderr,
    changes: existsSync(changes) ? readFileSync(changes, 'utf8').trim().split('\n') : [],
  }
}

describe('the script of kubectl kprobe migrate', () => {
  it('patches kube-proxy once, labels the node, and ends when kprobe has served for a while', () => {
    const first = migrate({})
    expect(first).toMatchObject({ code: 0, changes: ['patch', 'label'] })
    expect(first.err).toContain('cleanup --leftovers-of=kube-proxy')
    expect(migrate({ affinity: '{"key":"kprobe.io/proxy"}' }).changes).toEqual(['patch', 'label', 'label'])
  })

  it.each<[string, Cluster, string]>([
    ['verify differs', { verify: 3 }, 'kprobe verify: objects, daemon and kernel differ'],
    ['connections are rejected', { rejects: 20 }, 'more than one in twenty connections is rejected'],
    ['kube-proxy comes back', { stays: true }, 'kube-proxy is on the node again: something reverted'],
  ])('goes back when %s', (_, cluster, why) => {
    const { code, err, changes } = migrate(cluster)
    expect([code, changes]).toEqual([3, ['patch', 'label', 'unlabel']])
    expect(err).toContain(`node-1: going back to kube-proxy: ${why}`)
  })

  it('labels no node while the affinity of kube-proxy is rolled out', () => {
    const { code, err, changes } = migrate({ rollsLong: true })
    expect([code, changes]).toEqual([1, ['patch']])
    expect(err).toContain('run this script again')
  })

  it('does not claim that kube-proxy serves where the label stays', () => {
    const { code, err } = migrate({ verify: 3, keepsLabel: true })
    expect([code, err]).toEqual([4, expect.stringContaining('cannot remove the label kprobe.io/proxy')])
  })

  it('takes a few rejected connections for none', () => {
    expect(migrate({ perSecond: 0, rejects: 1 }).code).toBe(0)
    expect(migrate({ perSecond: 100, rejects: 4 }).code).toBe(0)
  })

  it.each<[string, Cluster, string]>([
    ['kprobe runs on every node', { nodeSelector: '{}' }, 'does not select nodes'],
    [
      'an add-on manager reconciles kube-proxy',
      { labels: '{"addonmanager.kubernetes.io/mode":"Reconcile"}' },
      'add-on manager reverts',
    ],
    [
      "kube-proxy's pods have node affinity, as on EKS",
      {
        affinity:
          '{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}}',
      },
      'add to each of its terms the expression kprobe.io/proxy NotIn kprobe',
    ],
  ])('changes nothing where %s', (_, cluster, why) => {
    const { code, err, changes } = migrate(cluster)
    expect([code, changes]).toEqual([1, []])
    expect(err).toContain(why)
  })

  it("runs the reader's check before the change and after it", () => {
    expect(migrate({}, { check: 'false' })).toMatchObject({ code: 1, changes: [] })
    const works = `test ! -e ${join(folder, 'labelled')} # it's kube-proxy`
    expect(migrate({}, { check: works })).toMatchObject({ code: 3, changes: ['patch', 'label', 'unlabel'] })
  })
})

describe('kprobe nodes migrate', () => {
  const run = async (...argv: readonly string[]) => {
    const io = new FakeIo()
    return { code: await command.run(['migrate', ...argv], io), out: io.stdout, err: io.stderr }
  }

  it('prints the script, with the flags of kubectl, and asks no server', async () => {
    const { code, out } = await run('--node=node-1', '--context=c', '--as-group=a,b', '--check=curl x')
    expect(code).toBe(0)
    expect(out).toMatch(/^#!\/bin\/sh\n/)
    expect(out).toContain(
      "kubectl '--context=c' '--as-group=a' '--as-group=b' '--namespace=kube-system' \"$@\"",
    )
    expect(out).toContain("check() { sh -c 'curl x'; }")
    expect(spawnSync('sh', ['-n'], { input: out }).status).toBe(0)
  })

  it.each([[[]], [['--node=a,b']], [['--node=-x']], [['--node=$(reboot)']]])('refuses %j', async argv => {
    expect(await run(...argv)).toMatchObject({ code: 2, out: '', err: expect.stringContaining('--node') })
  })
})
