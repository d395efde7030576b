export interface KubeconfigOptions {
  readonly server: string
  readonly caPem?: string
  readonly caFile?: string
  readonly tlsServerName?: string
  readonly insecure?: boolean
  readonly token?: string
  readonly tokenFile?: string
  readonly clientCertPem?: string
  readonly clientKeyPem?: string
  readonly clientCertFile?: string
  readonly clientKeyFile?: string
  readonly exec?: { readonly command: string; readonly args?: readonly string[] }
}

/** A kubeconfig of one context, as JSON, which is YAML as well. */
export function kubeconfigText(options: KubeconfigOptions): string {
  const { exec } = options
  const cluster = {
    server: options.server,
    'certificate-authority-data': base64(options.caPem),
    'certificate-authority': options.caFile,
    'tls-server-name': options.tlsServerName,
    'insecure-skip-tls-verify': options.insecure,
  }
  const user = {
    token: options.token,
    tokenFile: options.tokenFile,
    'client-certificate-data': base64(options.clientCertPem),
    'client-key-data': base64(options.clientKeyPem),
    'client-certificate': options.clientCertFile,
    'client-key': options.clientKeyFile,
    exec:
      exec === undefined
        ? undefined
        : { apiVersion: 'client.authentication.k8s.io/v1', interactiveMode: 'Never', ...exec },
  }
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'test',
    clusters: [{ name: 'test', cluster }],
    users: [{ name: 'test', user }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: 'test' } }],
  }
  return `${JSON.stringify(config, undefined, 2)}\n`
}

function base64(pem: string | undefined): string | undefined {
  return pem === undefined ? undefined : Buffer.from(pem).toString('base64')
}
