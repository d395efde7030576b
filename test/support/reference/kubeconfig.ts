export interface KubeconfigOptions {
  readonly server: string
  /** A file. */
  readonly certificateAuthority: string
  readonly token?: string
  /** Read anew when it changes. */
  readonly tokenFile?: string
  /** Files, read anew when they change. */
  readonly certificate?: { readonly certFile: string; readonly keyFile: string } | undefined
}

/** The text of a kubeconfig with one context; JSON is YAML. */
export function kubeconfigText({
  server,
  certificateAuthority,
  token,
  tokenFile,
  certificate,
}: KubeconfigOptions): string {
  const name = 'reference'
  const user = {
    ...(token === undefined ? {} : { token }),
    ...(tokenFile === undefined ? {} : { tokenFile }),
    ...(certificate === undefined
      ? {}
      : { 'client-certificate': certificate.certFile, 'client-key': certificate.keyFile }),
  }
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name, cluster: { server, 'certificate-authority': certificateAuthority } }],
    users: [{ name, user }],
    contexts: [{ name, context: { cluster: name, user: name } }],
    'current-context': name,
  }
  return `${JSON.stringify(config, undefined, 2)}\n`
}
