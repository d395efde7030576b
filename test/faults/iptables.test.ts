import { execFileSync, spawnSync } from 'node:child_process'
import { beforeEach, expect, it } from 'vitest'
import { COMMAND, type Daemon } from '../support/daemon.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'
import { FileSite, SOON_MS } from './file-site.ts'
import { Committer } from './foreign-rules.ts'
import { generation, nft, savedByTools as saved } from './kernel.ts'
import { clusterIp, nameOf, service, services } from './objects.ts'

/* What others do to the tables that the iptables mode shares with them. */

const site = FileSite.ofEachTest()

beforeEach(() => restore(FOREIGN))

/** A CNI's chains and jumps, kubelet's canary, and rules that an administrator has put beside them. */
const FOREIGN = `*filter
:CNI-FORWARD - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -m comment --comment "firewall plugin" -j CNI-FORWARD
-A CNI-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8081 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
`

function restore(text: string): void {
  execFileSync('iptables-nft-restore', ['--noflush'], { input: text })
}

function iptables(...args: readonly string[]): string {
  return execFileSync('iptables-nft', args, { encoding: 'utf8' })
}

const MODE = { args: ['--proxy-mode=iptables'] }
const running = (count: number): Promise<Daemon> => site.running(services(count), MODE)

/** Whether `kprobe verify` finds that the kernel holds what the objects ask for. */
function agrees(): boolean {
  const flags = [
    '--proxy-mode=iptables',
    `--cluster-cidr=${CLUSTER_CIDR}`,
    `--hostname-override=${NODE_NAME}`,
  ]
  const { status, stderr } = spawnSync(
    process.execPath,
    [COMMAND, 'verify', `--source=file:${site.folder}`, ...flags],
    { encoding: 'utf8' },
  )
  // 3 says that they differ; anything else is no answer.
  if (status !== 0 && status !== 3) throw new Error(`kprobe verify: ${status}: ${stderr}`)
  return status === 0
}

/** Gives the milliseconds until the kernel holds these. */
async function eventuallySaved(ours: readonly string[]): Promise<number> {
  const text = JSON.stringify(ours)
  return await eventually(() => JSON.stringify(saved().ours) === text)
}

/** A chain of the one Service or endpoint that `text` names. */
function chainNamed(pattern: RegExp): string {
  const [, chain = ''] = pattern.exec(saved().ours.join('\n')) ?? []
  expect(chain).not.toBe('')
  return chain
}

it('F48: chains of our names that somebody else has filled are ours in one commit, and all else stays', async () => {
  restore(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-NOTOURSNOTOURSNO - [0:0]
-A KUBE-SERVICES -d 10.1.2.3/32 -j KUBE-SVC-NOTOURSNOTOURSNO
-A KUBE-SVC-NOTOURSNOTOURSNO -p tcp -m tcp -j DNAT --to-destination 10.9.9.9:9
-A KUBE-MARK-MASQ -j RETURN
COMMIT
`)
  const { foreign } = saved()
  const before = await generation()
  await running(3)
  // The record of iptables mode, and the chains.
  expect(await generation()).toBe(before + 2)
  expect(agrees()).toBe(true)
  expect(saved().ours.filter(line => /NOTOURS|10\.9\.9\.9|-A KUBE-MARK-MASQ .*RETURN/.test(line))).toEqual([])
  expect(saved().foreign.filter(line => / -A /.test(line))).toEqual(foreign.filter(line => / -A /.test(line)))
})

it("F62: reloading others' chains leaves ours as they are, and us without a commit", async () => {
  const daemon = await running(20)
  const before = saved()
  for (let round = 0; round < 10; round++) {
    restore(
      '*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n-A CNI-HOSTPORT-DNAT -p udp -m udp --dport 53 -j RETURN\nCOMMIT\n',
    )
    restore(
      FOREIGN.split('*nat')[1]
        ?.replace(/^/, '*nat')
        .replace(/-A PREROUTING.*\n/, '') ?? '',
    )
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  await new Promise(resolve => setTimeout(resolve, 300))
  await daemon.caughtUp()
  expect(daemon.said('committed')).toHaveLength(1)
  expect(daemon.said('repaired foreign changes')).toEqual([])
  expect(saved()).toEqual(before)
})

const SERVICES = 10

const DAMAGES: readonly (readonly [string, () => void])[] = [
  ['iptables -t nat -F', () => iptables('-t', 'nat', '-F')],
  ['iptables -F, and then -X', () => [iptables('-F'), iptables('-X')]],
  ['a deleted jump', () => iptables('-t', 'nat', '-D', 'PREROUTING', ...jumpTo('KUBE-SERVICES'))],
  ['a jump that is there twice', () => iptables('-t', 'nat', '-I', 'OUTPUT', ...jumpTo('KUBE-SERVICES'))],
  ['a rule more in a chain of ours', () => iptables('-t', 'nat', '-I', 'KUBE-SERVICES', '-j', 'RETURN')],
  ['a rule less in a chain of ours', () => iptables('-t', 'nat', '-D', 'KUBE-POSTROUTING', '1')],
  ['a Service whose rule is gone', () => iptables('-t', 'nat', '-D', 'KUBE-SERVICES', '1')],
  [
    'an edited endpoint',
    () => {
      const chain = chainNamed(/-A (KUBE-SEP-\S+) .*10\.1\.3\.1:8080/)
      iptables('-t', 'nat', '-R', chain, '2', '-p', 'tcp', '-j', 'DNAT', '--to-destination', '10.9.9.9:9')
    },
  ],
  ['the table nat of one family gone', () => nft('delete table ip6 nat')],
]

it('F62, F63: flushed tables and damaged chains are repaired, and what is not ours stays', async () => {
  const daemon = await running(SERVICES)
  const { ours } = saved()
  expect(agrees()).toBe(true)
  const tookMs: number[] = []
  for (const [index, [what, damage]] of DAMAGES.entries()) {
    // What an earlier flush has taken of theirs.
    restore(FOREIGN)
    // Of two commands, none is to meet what was repaired between them.
    daemon.kill('SIGSTOP')
    damage()
    const { foreign } = saved()
    daemon.kill('SIGCONT')
    tookMs.push(await eventuallySaved(ours))
    await daemon.logged('repaired foreign changes', index + 1)
    // Chains of iptables itself come back with the jumps that stand in them.
    const rules = (lines: readonly string[]) => lines.filter(line => / -A |:CNI|CANARY/.test(line))
    expect(rules(saved().foreign), what).toEqual(rules(foreign))
  }
  expect(Math.min(...tookMs)).toBeLessThan(patientMs(SOON_MS))
})

function jumpTo(chain: string): readonly string[] {
  return ['-m', 'comment', '--comment', 'kubernetes service portals', '-j', chain]
}

it('F51: edits and repairs come through while nft commits 200 times a second', async () => {
  const daemon = await running(200)
  nft('table ip other { set s { type ipv4_addr; }; }')
  const lines = ['add', 'delete'].map(verb => `${verb} element ip other s { 10.0.0.1 }`)
  const committer = new Committer(lines, 200)
  try {
    await new Promise(resolve => setTimeout(resolve, 500))
    // Entries that go are deleted by their handles, each batch against the generation that was looked at.
    for (const count of [203, 150, 201]) {
      await daemon.loggedAfter('committed', () => site.write(services(count)))
    }
    // A commit of the last change would repair the chain as well, and count as a change.
    await eventually(() => saved().ours.some(line => line.includes(`-d ${clusterIp(200)}/32 `)))
    iptables('-w', '10', '-t', 'nat', '-F', chainNamed(/-A (KUBE-SEP-\S+) .*10\.1\.3\.1:8080/))
    await daemon.logged('repaired foreign changes')
    await eventually(() => committer.commits > 200, { progress: () => committer.commits })
  } finally {
    await committer.stop()
  }
  await eventually(agrees)
  await daemon.caughtUp()
  expect(daemon.said('sync failed; retrying')).toEqual([])
})

it('F57: a Service that the kernel refuses is left out and named, and all others are there', async () => {
  // A rule of somebody else leads to its chain from a hook at which no destination is translated.
  restore('*nat\nCOMMIT\n')
  const taken = 3
  const probe = await running(1)
  await probe.stop()
  const other = await site.running(service(taken), MODE)
  const chain = chainNamed(
    new RegExp(`-d ${clusterIp(taken).replaceAll('.', '\\.')}/32 .*-j (KUBE-SVC-\\S+)`),
  )
  await other.stop()
  nft('flush ruleset')
  nft(`table ip nat { chain ${chain} {}; chain INPUT { type nat hook input priority 100; jump ${chain}; }; }`)
  site.write(services(8))
  const daemon = site.daemon(MODE)
  await daemon.until(() => JSON.stringify(daemon.records).includes(nameOf(taken)))
  const rules = services(8)
    .filter((_, i) => i % 2 === 0 && i / 2 !== taken)
    .map((_, i) => clusterIp(i < taken ? i : i + 1))
  await eventually(() => rules.every(ip => saved().ours.some(line => line.includes(`-d ${ip}/32 -p tcp`))))
  expect(saved().ours.some(line => line.includes(`-d ${clusterIp(taken)}/32 -p tcp`))).toBe(false)
})

it('F49: a chain that a rule of somebody else leads to holds up nothing but itself', async () => {
  const daemon = await running(6)
  const gone = 5
  const chain = chainNamed(new RegExp(`-d ${clusterIp(gone).replaceAll('.', '\\.')}/32 .*-j (KUBE-SVC-\\S+)`))
  iptables('-t', 'nat', '-A', 'CNI-HOSTPORT-DNAT', '-p', 'tcp', '--dport', '9999', '-j', chain)
  const { foreign } = saved()
  await daemon.loggedAfter('committed', () => site.write([...services(5), ...service(7)]))
  await eventually(() => saved().ours.some(line => line.includes(`-d ${clusterIp(7)}/32 -p tcp`)))
  expect(saved().ours.filter(line => line.includes(clusterIp(gone)))).toEqual([])
  expect(saved().foreign).toEqual(foreign)
  // Their rule, and the chain that it leads to, with nothing in it.
  const kept = saved().ours.filter(line => line.includes(chain))
  expect(kept.map(line => line.split(' ')[1])).toEqual(['-A', `:${chain}`])
  iptables('-t', 'nat', '-D', 'CNI-HOSTPORT-DNAT', '-p', 'tcp', '--dport', '9999', '-j', chain)
  await eventually(() => !saved().ours.some(line => line.includes(chain)))
})

it('F83: killed in the middle of what it writes, it is followed by one that completes it', async () => {
  const { foreign } = saved()
  const rules = (lines: readonly string[]) => lines.filter(line => / -A |:CNI|CANARY/.test(line))
  for (const [round, waitMs] of [0, 20, 60, 120, 200].entries()) {
    site.write(services(400 - 50 * round))
    const daemon = site.daemon(MODE)
    await daemon.logged('session affinity remembers')
    await new Promise(resolve => setTimeout(resolve, waitMs))
    process.kill(daemon.pid, 'SIGKILL')
    await daemon.ended()
  }
  const last = await running(20)
  expect(agrees()).toBe(true)
  expect(rules(saved().foreign)).toEqual(rules(foreign))
  await last.stop()
})
