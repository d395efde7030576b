import { describe, expect, it } from 'vitest'
import { ApiError } from '../../../../../src/source/kube/api-client.ts'
import { readKubeconfig } from '../../../../../src/source/kube/client/kubeconfig.ts'
import { CANARY } from './loopback.ts'

function read(text: string, master = '') {
  return readKubeconfig({ path: '/etc/k/config', text, master })
}

function withParts(cluster: string, user: string): string {
  return `
apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: ${cluster}
users:
- name: u
  user: ${user}
contexts:
- name: x
  context: {cluster: c, user: u}
current-context: x
`
}

function complaint(text: string): string {
  try {
    read(text)
  } catch (error) {
    if (error instanceof ApiError) return `${error.kind}: ${error.message}`
    throw error
  }
  return ''
}

describe('a kubeconfig', () => {
  it('as kubeadm writes it for kube-proxy names a token file and an authority', () => {
    const access = read(`
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    server: https://192.0.2.1:6443
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
`)
    expect(access).toMatchObject({
      where: 'kubeconfig /etc/k/config, context "default", cluster "default", user "default"',
      server: 'https://192.0.2.1:6443',
      ca: { kind: 'file', path: '/var/run/secrets/kubernetes.io/serviceaccount/ca.crt' },
      token: { kind: 'file', path: '/var/run/secrets/kubernetes.io/serviceaccount/token' },
      insecure: false,
    })
  })

  it('has paths relative to itself, and data that win over files', () => {
    const access = read(
      withParts(
        `{server: 'https://a.test', certificate-authority: ca.pem, certificate-authority-data: ${btoa('inline')}}`,
        '{client-certificate: c.pem, client-key: ../k.pem, tokenFile: t, exec: {command: ./bin/x}}',
      ),
    )
    expect(access).toMatchObject({
      ca: { kind: 'text', text: 'inline' },
      cert: { kind: 'file', path: '/etc/k/c.pem' },
      key: { kind: 'file', path: '/etc/k/../k.pem'.replace('k/../', '') },
      token: { kind: 'file', path: '/etc/k/t' },
      exec: { command: '/etc/k/bin/x' },
    })
  })

  it('has the impersonated identity, and the address of the server', () => {
    const access = read(
      withParts(
        '{server: "https://a.test", tls-server-name: b.test, proxy-url: "http://p.test:3128", insecure-skip-tls-verify: true}',
        '{username: me, password: secret, as: other, as-uid: "7", as-groups: [g, h]}',
      ),
    )
    expect(access).toMatchObject({
      tlsServerName: 'b.test',
      proxyUrl: 'http://p.test:3128',
      insecure: true,
      basic: { username: 'me', password: 'secret' },
      impersonation: { 'impersonate-user': 'other', 'impersonate-uid': '7', 'impersonate-group': ['g', 'h'] },
    })
  })

  it('has its server replaced by --master, and needs no context then', () => {
    expect(read(withParts('{server: "https://a.test"}', '{token: t}'), 'https://m.test')).toMatchObject({
      server: 'https://m.test',
      token: { kind: 'text', text: 't' },
    })
    expect(read('kind: Config', 'https://m.test')).toMatchObject({
      server: 'https://m.test',
      token: undefined,
    })
  })

  it.each([
    ['a: [', 'not YAML at line'],
    [`users: "${CANARY}`, 'not YAML at line'],
    [`users:\n- *${CANARY}`, 'not YAML at line'],
    ['', 'not a mapping'],
    [CANARY, 'not a mapping'],
    ['kind: Config', 'it names no current-context'],
    ['current-context: nope', 'there is no context "nope", the current-context'],
    [
      'contexts: [{name: x, context: {cluster: gone}}]\ncurrent-context: x',
      'cluster "gone": there is no cluster',
    ],
    [
      'clusters: [{name: c, cluster: {server: s}}]\ncontexts: [{name: x, context: {cluster: c, user: lost}}]\ncurrent-context: x',
      'user "lost": there is no user of that name',
    ],
    [withParts('{server: [a]}', '{}'), 'server is not text'],
    [withParts('{server: a}', '{token: 12345}'), 'user "u": token is not text'],
    [
      withParts('{server: a}', '{auth-provider: {name: oidc}}'),
      'auth-provider is no longer part of Kubernetes',
    ],
    [withParts('{server: a}', '{exec: {args: [x]}}'), 'exec.command is missing'],
    [
      withParts('{server: a}', '{exec: {command: x, interactiveMode: Always}}'),
      'kprobe cannot prompt for input',
    ],
    [withParts('{server: a}', '{as-uid: "1"}'), 'as is missing'],
    [withParts('{server: a}', '{as: a, as-user-extra: {a: [b]}}'), 'as-user-extra is not supported'],
    [
      withParts('{server: a, insecure-skip-tls-verify: true, certificate-authority: f}', '{}'),
      'insecure-skip-tls-verify is true beside a certificate-authority',
    ],
  ])('%j is refused by name', (text, words) => {
    const said = complaint(text)
    expect(said).toContain('credentials: kubeconfig /etc/k/config')
    expect(said).toContain(words)
    expect(said).not.toContain(CANARY)
  })

  it('may be invalid in unused entries', () => {
    const text = withParts('{server: "https://a.test"}', '{token: t}').replace('users:', 'users:\n- user: {}')
    expect(read(text)).toMatchObject({ server: 'https://a.test' })
  })
})
