import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Ended, runInProcess } from '../support/command.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'

/* What `dump`, `explain`, `why` and `doctor` say of rules that somebody has damaged. */

const NODE = '--hostname-override=example-node'
const CART = ['--from', '203.0.113.9', '--to', '10.96.1.1:80']
const daemons = new Daemons()

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const tool = (line: string): string => {
  const [name = '', ...args] = line.split(' ')
  return execFileSync(name, args, { encoding: 'utf8' })
}

/** The processes that stand still until the end of the test. */
const stopped: number[] = []

function relaying(): ReturnType<Daemons['running']> {
  const args = [NODE, '--proxy-mode=userspace', `--cluster-cidr=${CLUSTER_CIDR}`]
  return daemons.running({ source: EXAMPLES, args })
}

/** A daemon of userspace mode that stands still listens, and repairs nothing. */
async function program(mode: string): Promise<void> {
  if (mode === 'userspace') {
    const { pid } = await relaying()
    process.kill(pid, 'SIGSTOP')
    stopped.push(pid)
    return
  }
  const ran = await kprobe('run', '--once', NODE, `--source=file:${EXAMPLES}`, `--proxy-mode=${mode}`)
  expect(ran.code, ran.err).toBe(0)
}

const explain = (mode: string, command = 'explain'): Promise<Ended> =>
  kprobe(command, NODE, `--source=file:${EXAMPLES}`, `--proxy-mode=${mode}`, ...CART)

beforeEach(() => {
  freshNetns()
  forwardPackets()
  tool('ip link set lo up')
  tool('ip addr add 10.1.2.3/24 dev lo')
})
afterEach(async () => {
  for (const pid of stopped.splice(0)) process.kill(pid, 'SIGCONT')
  await daemons.end()
  tool('nft flush ruleset')
})

const DAMAGES: readonly (readonly [mode: string, command: string, reason: string])[] = [
  ['nftables', 'nft flush chain ip kube-proxy services', 'chain ip kube-proxy services is empty'],
  [
    'nftables',
    'nft flush chain ip kube-proxy early-prerouting',
    'chain ip kube-proxy early-prerouting is empty',
  ],
  [
    'nftables',
    'nft delete chain ip kube-proxy early-prerouting',
    'there is no chain ip kube-proxy early-prerouting at its hook',
  ],
  ['nftables', 'nft add table ip kube-proxy { flags dormant; }', 'table ip kube-proxy is dormant'],
  [
    'userspace',
    'nft flush chain ip kube-proxy-userspace services',
    'chain ip kube-proxy-userspace services is empty',
  ],
  [
    'userspace',
    'nft delete chain ip kube-proxy-userspace early-prerouting',
    'there is no chain ip kube-proxy-userspace early-prerouting at its hook',
  ],
  ['iptables', 'iptables-nft -t nat -F KUBE-SERVICES', 'no rule leads to KUBE-SVC-'],
  ['iptables', 'iptables-nft -t nat -F PREROUTING', 'chain ip nat PREROUTING has no jump to KUBE-SERVICES'],
]

/** The reasons that `why` gives, where they are not those in the rows of `dump`. */
const IN_SHORT = new Map([['iptables-nft -t nat -F KUBE-SERVICES', 'chain ip nat KUBE-SERVICES is empty']])

describe.each(DAMAGES)('%s mode after `%s`', (mode, command, reason) => {
  it('says that nothing is reached, why, and fails', async () => {
    await program(mode)
    expect(await kprobe('dump')).toMatchObject({ code: 0, err: '' })
    expect(await explain(mode)).toMatchObject({ code: 0 })
    const whole = (await explain(mode, 'why')).out
    expect(whole).toMatch(/^served: any of 2 endpoints, a half each; /)
    expect(whole).toMatch(/^Path.*, the same in the kernel:$/m)
    tool(command)
    const dumped = await kprobe('dump')
    expect(dumped.code).toBe(1)
    expect(dumped.out).toMatch(
      /^shop\/cart:http +\S.* (10\.96\.1\.1:80|\*:30080)\/TCP +NOT REACHED from prerouting/m,
    )
    expect(dumped.out).toContain(reason)
    // There is no IPv6 address here to relay at.
    if (mode !== 'userspace') expect(dumped.out).toMatch(/^shop\/cart:http .*\]:80\/TCP(?! *NOT REACHED)/m)
    expect(dumped.err).toMatch(/^DAMAGED: .*\d+ of \d+ frontends are not reached or incomplete/m)
    const explained = await explain(mode)
    expect(explained.code).toBe(3)
    expect(explained.out).toMatch(/^rules damaged: /)
    const answered = await explain(mode, 'why')
    expect(answered.code).toBe(3)
    expect(answered.out).toMatch(/^rules damaged: /)
    expect(answered.out.split('\n')[0]).toContain(IN_SHORT.get(command) ?? reason)
    expect(answered.out).toContain('\nPath in the kernel:\n')
    const examined = await kprobe('doctor', NODE, `--proxy-mode=${mode}`)
    expect(examined.code).toBe(3)
    expect(examined.out).toMatch(new RegExp(`^DAMAGED +rules of ${mode} mode +`, 'm'))
  })
})

it('names chains of other programs on the way, and says that only the rules of kprobe serve', async () => {
  await program('nftables')
  tool('nft add table ip idle { chain pre { type filter hook prerouting priority -300; }; }')
  tool('nft add table ip6 six { chain pre { type filter hook prerouting priority -300; policy drop; }; }')
  expect((await explain('nftables', 'why')).out).toMatch(/^served: /)
  tool('nft add table ip foreign { chain pre { type filter hook prerouting priority -300; }; }')
  tool('nft add rule ip foreign pre ip daddr 10.96.1.1 drop')
  tool('nft add table inet wall { chain in { type filter hook input priority 0; policy drop; }; }')
  const unknown =
    'Not known:\n  what chain ip foreign pre does with the packet; `kprobe verify --prove` follows it\n'
  const answered = await explain('nftables', 'why')
  expect(answered.out).toMatch(/^kprobe's rules serve it: any of 2 endpoints, a half each; /)
  expect(answered.out).toContain(unknown)
  const explained = await explain('nftables')
  expect(explained.out).toMatch(/^kprobe's rules serve it: /)
  expect(explained.out).toContain(unknown)
})

it('says why that no rule is for a frontend whose element is gone', async () => {
  await program('nftables')
  tool('nft delete element ip kube-proxy frontends { 10.96.1.1 . tcp . 80 }')
  const { code, out } = await explain('nftables', 'why')
  expect(code).toBe(3)
  expect(out).toMatch(/^rules damaged: no rule of nftables mode is for 10\.96\.1\.1:80\n/)
  expect(out).toContain('rule 3: ip daddr @cluster-ips counter goto refuse comment "no such port"\n')
})

it('keeps a ClusterIP a ClusterIP whose element is gone, and marks it', async () => {
  await program('nftables')
  tool('nft delete element ip kube-proxy cluster-ips { 10.96.1.1 }')
  const { code, out } = await kprobe('dump')
  expect(code).toBe(1)
  expect(out).toMatch(
    /^shop\/cart:http +ClusterIP +10\.96\.1\.1:80\/TCP +10\.244\.0\.11:8080, .*\(INCOMPLETE: 10\.96\.1\.1 is missing in set cluster-ips: /m,
  )
  expect(out.match(/INCOMPLETE|NOT REACHED/g)).toHaveLength(1)
})

it('says in which mode a row is while rules of two modes are there, and warns', async () => {
  await relaying()
  await daemons.end()
  const left = tool('nft list ruleset')
  tool('nft flush ruleset')
  await program('nftables')
  expect((await kprobe('dump')).out).toMatch(/^SERVICE +TYPE /)
  expect((await explain('userspace')).out).toContain(
    'rules of userspace mode are not in the kernel; those of nftables mode are\n',
  )
  // A daemon would remove what the other mode left.
  execFileSync('nft', ['-f', '-'], { input: left })
  const { code, out, err } = await kprobe('dump')
  // No daemon relays any more.
  expect(code).toBe(1)
  expect(out).toMatch(/^SERVICE +MODE +TYPE /)
  expect(out).toMatch(/^shop\/cart:http +nftables +ClusterIP +10\.96\.1\.1:80\/TCP/m)
  expect(out).toMatch(/^shop\/cart:http +userspace +ClusterIP +10\.96\.1\.1:80\/TCP/m)
  expect(err).toMatch(/^warning: rules of nftables and userspace mode are both in the kernel/m)
})

it('says that nothing is relayed after the daemon of userspace mode has ended', async () => {
  await relaying()
  expect(await kprobe('dump')).toMatchObject({ code: 0, err: '' })
  await daemons.end()
  const { code, out, err } = await kprobe('dump')
  expect(code).toBe(1)
  expect(out).toMatch(
    /^shop\/cart:http +ClusterIP +10\.96\.1\.1:80\/TCP +NOT RELAYED: no process listens at 10\.1\.2\.3:\d+$/m,
  )
  expect(out).toMatch(/^kube-system\/kube-dns:dns +ClusterIP +10\.96\.0\.10:53\/UDP +NOT RELAYED: /m)
  expect(out).not.toContain('relayed at')
  expect(err).toMatch(/^DAMAGED: .* start kprobe again, or remove its rules with `kprobe cleanup`$/m)
  const explained = await explain('userspace')
  expect(explained.code).toBe(3)
  expect(explained.out).toMatch(/^not relayed: no process listens at 10\.1\.2\.3:\d+\n/)
  const examined = await kprobe('doctor', NODE, '--proxy-mode=userspace')
  expect(examined.code).toBe(3)
  expect(examined.out).toMatch(/^DAMAGED +rules of userspace mode +/m)
})

it('says that userspace mode serves nothing on a node without an address', async () => {
  tool('ip addr del 10.1.2.3/24 dev lo')
  await relaying()
  expect(await kprobe('dump')).toMatchObject({
    code: 0,
    out: 'SERVICE   TYPE   FRONTEND   ENDPOINTS\n',
    err: 'the rules of userspace mode serve no frontend: there are no Services, or the daemon skips them; its log has the reason\n',
  })
})
