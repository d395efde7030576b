export interface KubeconfigOptions {
  readonly server: string
  readonly caPem?: string
  readonly caFile?: string
  readonly tlsServerName?: string
  readonly token?: string
  readonly tokenFile?: string
  readonly certificate?: { readonly certFile: string; readonly keyFile: string }
  readonly exec?: { readonly command: string; readonly args?: readonly string[] }
}

/** A kubeconfig of one context, as JSON, which is YAML as well. */
export function kubeconfigText(options: KubeconfigOptions): string {
  const { server, caPem, token, tokenFile, certificate, exec } = options
  const name = 'test'
  const cluster = {
    server,
    'certificate-authority-data': caPem === undefined ? undefined : Buffer.from(caPem).toString('base64'),
    'certificate-authority': options.caFile,
    'tls-server-name': options.tlsServerName,
  }
  const user = {
    token,
    tokenFile,
    'client-certificate': certificate?.certFile,
    'client-key': certificate?.keyFile,
    exec: exec && { apiVersion: 'client.authentication.k8s.io/v1', interactiveMode: 'Never', ...exec },
  }
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': name,
    clusters: [{ name, cluster }],
    users: [{ name, user }],
    contexts: [{ name, context: { cluster: name, user: name } }],
  }
  return `${JSON.stringify(config, undefined, 2)}\n`
}
